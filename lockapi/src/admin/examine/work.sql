-- Reads which work makes no progress: jobs that no worker takes, tasks that no scheduler fires, locks with waiters,
-- worker numbers that run out. $1 is from which age on, in microseconds.
--
-- Promises: a row for each queue, scheduler, lock or name, with the name of the fault and what was found; it reads a
-- bounded number of rows of each queue, however many there are.
-- Index: job_due and job_archive_failed, with one lookup for each next queue; job_parked_due, job_admitted, group_limit_pkey and
-- group_rate_pkey; paused_name_pkey; queue_limit_pkey, and job_pkey for what holds a
-- place; the primary keys of task, queue, id_space
-- and id_worker; of leases the first thousand of theirs. Race: none, it only reads.
WITH RECURSIVE old AS (
    SELECT pg_catalog.statement_timestamp() - $1::int8 * interval '1 microsecond' AS at
), live AS (
    (SELECT j.namespace, j.queue FROM lockapi.job AS j ORDER BY j.namespace, j.queue LIMIT 1)
    UNION ALL
    SELECT n.namespace, n.queue
      FROM live AS l
     CROSS JOIN LATERAL (
           SELECT j.namespace, j.queue
             FROM lockapi.job AS j
            WHERE (j.namespace, j.queue) > (l.namespace, l.queue)
            ORDER BY j.namespace, j.queue
            LIMIT 1) AS n
), queue AS (
    SELECT l.namespace, l.queue,
           EXISTS (SELECT FROM lockapi.queue AS q WHERE q.namespace = l.namespace AND q.name = l.queue AND q.paused
                  AND coalesce(q.paused_until > pg_catalog.statement_timestamp(), true)) AS paused
      FROM live AS l
), due AS (
    SELECT q.namespace, q.queue, q.paused, o.name, o.run_at,
           EXISTS (SELECT FROM lockapi.paused_name AS p
                    WHERE p.namespace = q.namespace AND p.queue = q.queue AND p.name = o.name
                      AND coalesce(p.paused_until > pg_catalog.statement_timestamp(), true)) AS stopped
      FROM queue AS q
     CROSS JOIN (VALUES (0::int2), (1::int2), (2::int2), (3::int2)) AS level (priority)
     CROSS JOIN LATERAL (
           SELECT f.name, pg_catalog.min(f.run_at) AS run_at
             FROM (SELECT j.name, j.run_at, j.lease_until
                     FROM lockapi.job AS j
                    WHERE j.namespace = q.namespace AND j.queue = q.queue AND j.priority = level.priority
                      AND j.run_at <= pg_catalog.statement_timestamp()
                    ORDER BY j.run_at, j.id + 0
                    LIMIT 1000) AS f
            WHERE f.lease_until IS NULL OR f.lease_until <= pg_catalog.clock_timestamp()
            GROUP BY f.name) AS o
), oldest AS (
    SELECT d.namespace, d.queue, d.paused, pg_catalog.min(d.run_at) AS run_at
      FROM due AS d
     WHERE NOT d.stopped
     GROUP BY d.namespace, d.queue, d.paused
), parked AS (
    SELECT q.namespace, q.queue, q.paused, f.group_key, f.limit_key, f.due_at,
           (SELECT pg_catalog.min(g.group_key)
              FROM lockapi.group_limit AS g
             WHERE g.namespace = q.namespace AND g.queue = q.queue AND g.group_key IN (f.group_key, f.limit_key) AND g.most = 0) AS stopped_by
      FROM queue AS q
     CROSS JOIN LATERAL (
           SELECT j.group_key, j.headers ->> 'limit-by' AS limit_key, j.due_at
             FROM lockapi.job AS j
            WHERE (j.namespace || '') = q.namespace AND (j.queue || '') = q.queue
              AND (j.due_at > '-infinity'::timestamptz) IS TRUE AND j.due_at <= pg_catalog.statement_timestamp()
            ORDER BY j.due_at
            LIMIT 1000) AS f
), unadmitted AS (
    -- Whoever claims admits, so where jobs are parked and none is admitted, nobody claims.
    SELECT p.namespace, p.queue, p.paused, pg_catalog.min(p.due_at) AS due_at
      FROM parked AS p
     WHERE NOT EXISTS (SELECT FROM parked AS s
                        WHERE s.namespace = p.namespace AND s.queue = p.queue AND s.group_key = p.group_key AND s.stopped_by IS NOT NULL)
       AND NOT EXISTS (SELECT FROM lockapi.job AS j
                        WHERE j.namespace COLLATE "POSIX" = p.namespace AND j.queue COLLATE "POSIX" = p.queue
                          AND j.due_at IS NULL AND j.group_key IS NOT NULL)
       -- One that has taken a permit lately may wait for the next.
       AND NOT EXISTS (SELECT FROM lockapi.group_rate AS r
                        WHERE r.namespace = p.namespace AND r.queue = p.queue AND r.group_key IN (p.group_key, p.limit_key)
                          AND r.tat > lockapi.clock())
       -- In order, the first one may be put off.
       AND NOT EXISTS (SELECT FROM lockapi.queue_groups AS g
                        WHERE g.namespace = p.namespace AND g.queue = p.queue AND g.ordered
                          AND (SELECT j.due_at
                                 FROM lockapi.job AS j
                                WHERE (j.namespace || '') = p.namespace AND (j.queue || '') = p.queue
                                  AND (j.group_key || '') = p.group_key
                                  AND coalesce(j.due_at <= 'infinity'::timestamptz, false)
                                ORDER BY j.id + 0
                                LIMIT 1) > pg_catalog.statement_timestamp())
     GROUP BY p.namespace, p.queue, p.paused
), stopped AS (
    SELECT p.namespace, p.queue, p.stopped_by AS group_key, pg_catalog.min(p.due_at) AS due_at
      FROM parked AS p
     WHERE p.stopped_by IS NOT NULL
     GROUP BY p.namespace, p.queue, p.stopped_by
), waiting AS (
    SELECT b.namespace, b.queue, b.paused, pg_catalog.min(b.run_at) AS run_at
      FROM (SELECT o.* FROM oldest AS o UNION ALL SELECT u.* FROM unadmitted AS u) AS b
     GROUP BY b.namespace, b.queue, b.paused
    HAVING pg_catalog.min(b.run_at) < (SELECT old.at FROM old)
), limited AS (
    -- All its places are taken, or its permits are as soon as there are any: somebody claims from it.
    SELECT w.namespace, w.queue, l.most, l.permits, l.period, p.n
      FROM waiting AS w
      JOIN lockapi.queue_limit AS l ON l.namespace = w.namespace AND l.queue = w.queue AND l.name = ''
     CROSS JOIN LATERAL (
           SELECT pg_catalog.count(*) AS n
             FROM unnest(l.ids, l.tokens) AS t (id, token)
            CROSS JOIN LATERAL (
                  SELECT
                    FROM lockapi.job AS j
                   WHERE j.id = t.id AND j.token = t.token AND j.lease_until > pg_catalog.clock_timestamp()
                  OFFSET 0) AS j) AS p
     WHERE NOT w.paused
       AND (p.n >= l.most
            OR l.permits > 0
               AND l.at + l.step > (extract(epoch FROM pg_catalog.clock_timestamp() - interval '1 minute') * 1000000000)::int8)
), dead AS (
    (SELECT a.namespace, a.queue
       FROM lockapi.job_archive AS a WHERE a.status = 'failed' ORDER BY a.namespace, a.queue LIMIT 1)
    UNION ALL
    SELECT n.namespace, n.queue
      FROM dead AS d
     CROSS JOIN LATERAL (
           SELECT a.namespace, a.queue
             FROM lockapi.job_archive AS a
            WHERE a.status = 'failed' AND (a.namespace, a.queue) > (d.namespace, d.queue)
            ORDER BY a.namespace, a.queue
            LIMIT 1) AS n
)
SELECT CASE WHEN o.paused THEN 'paused' ELSE 'unclaimed' END AS fault, o.namespace || '/' || o.queue AS subject,
       'a job has been due for ' || pg_catalog.date_trunc('second', pg_catalog.clock_timestamp() - o.run_at) AS detail
  FROM waiting AS o
 WHERE NOT EXISTS (SELECT FROM limited AS l WHERE l.namespace = o.namespace AND l.queue = o.queue)
 UNION ALL
SELECT 'limited', o.namespace || '/' || o.queue,
       'a job has been due for ' || pg_catalog.date_trunc('second', pg_catalog.clock_timestamp() - o.run_at) || '; '
       || CASE WHEN l.n >= l.most THEN l.n || ' of ' || l.most || ' jobs run'
               ELSE l.permits || ' jobs are claimed in '
                    || pg_catalog.date_trunc('milliseconds', l.period / 1000.0 * interval '1 microsecond') END
  FROM waiting AS o
  JOIN limited AS l ON l.namespace = o.namespace AND l.queue = o.queue
 UNION ALL
SELECT 'paused_group', s.namespace || '/' || s.queue || '/' || s.group_key,
       'a job has been due for ' || pg_catalog.date_trunc('second', pg_catalog.clock_timestamp() - s.due_at)
  FROM stopped AS s
 WHERE s.due_at < (SELECT old.at FROM old)
 UNION ALL
SELECT 'paused_name', s.namespace || '/' || s.queue || '/' || s.name,
       'a job has been due for ' || pg_catalog.date_trunc('second', pg_catalog.clock_timestamp() - s.run_at)
  FROM (SELECT d.namespace, d.queue, d.name, pg_catalog.min(d.run_at) AS run_at
          FROM due AS d
         WHERE d.stopped
         GROUP BY d.namespace, d.queue, d.name) AS s
 WHERE s.run_at < (SELECT old.at FROM old)
 UNION ALL
SELECT 'dead_letters', d.namespace || '/' || d.queue,
       c.n || CASE WHEN c.n = 1000 THEN ' or more' ELSE '' END || ' dead letters'
  FROM dead AS d
 CROSS JOIN LATERAL (
       SELECT pg_catalog.count(*) AS n
         FROM (SELECT FROM lockapi.job_archive AS a
                WHERE a.namespace = d.namespace AND a.queue = d.queue AND a.status = 'failed'
                ORDER BY a.id + 0
                LIMIT 1000) AS f) AS c
 UNION ALL
SELECT 'overdue_tasks', t.namespace || '/' || t.scheduler,
       pg_catalog.count(*) || ' tasks are overdue, ' || pg_catalog.min(t.name) || ' among them, for up to '
       || pg_catalog.date_trunc('second', pg_catalog.clock_timestamp() - pg_catalog.min(t.next_at))
  FROM lockapi.task AS t
 WHERE t.enabled AND t.next_at < (SELECT old.at FROM old)
 GROUP BY t.namespace, t.scheduler
 UNION ALL
SELECT 'worker_numbers', s.namespace || '/' || s.name, w.n || ' of ' || (1::int8 << s.worker_bits::int4) || ' worker numbers are taken'
  FROM lockapi.id_space AS s
 CROSS JOIN LATERAL (
       SELECT pg_catalog.count(*) AS n
         FROM lockapi.id_worker AS w
        WHERE w.namespace = s.namespace AND w.name = s.name AND w.token <> 0 AND w.expires_at > pg_catalog.clock_timestamp()) AS w
 WHERE w.n * 10 > (1::int8 << s.worker_bits::int4) * 8
 UNION ALL
SELECT 'no_timeline', 'lockapi.epoch', 'the server did not tell which timeline it writes when the epoch ' || e.number || ' began'
  FROM lockapi.epoch AS e
 WHERE e.timeline = -1
 UNION ALL
SELECT 'unswept', 'lease', 'leases that ended days ago are still there, such as ' || pg_catalog.min(l.key)
  FROM (SELECT l.key, l.expires_at FROM lockapi.lease AS l ORDER BY l.key, l.namespace, l.slot LIMIT 1000) AS l
 WHERE l.expires_at < pg_catalog.clock_timestamp() - interval '72 hours'
HAVING pg_catalog.count(*) > 0
 UNION ALL
SELECT 'lock_wait', w.name, coalesce(w.owner, w.application, 'somebody') || ' waits for it, for '
       || pg_catalog.date_trunc('second', w.waits_for)
       || coalesce(', behind session ' || w.blocker_pid || ' (' || coalesce(nullif(w.blocker_application, ''), 'no application name')
                   || ', ' || coalesce(w.blocker_state, 'unknown') || ')', '')
  FROM lockapi.wait_view AS w
 WHERE w.since < (SELECT old.at FROM old)
 ORDER BY 1, 2
