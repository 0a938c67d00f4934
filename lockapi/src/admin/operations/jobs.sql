-- Lists jobs of the queue $2 of the namespace $1 in the state $3, or (empty) those that wait or run, of the name $4, the group
-- $11 and with the tag $12, or (empty) of any, that were pushed from $13 on and before $14.
--
-- Promises: at most $10 jobs among the first $9 that are examined, so the time does not grow with the number
-- of jobs. Those that wait or run are listed in the order in which they are claimed, from the place $6, $7 of
-- each of the priorities $5 on; those that ended by their numbers, the largest first, below $8. A last row
-- without a number returns the last place that was examined, unless that was the last of all. Payloads are not read.
-- What a delivery before the latest told is not shown, and nothing of a job that begins anew.
-- Index: job_due, one range for each priority; job_archive_failed; job_archive_pkey for what was completed or
-- cancelled, across all queues; job_progress_pkey, for each job that is listed. Race: none, it only reads; the answer may be old on arrival.
WITH live AS MATERIALIZED (
    SELECT o.*, level.priority
      FROM unnest($5::int8[], $6::int8[], $7::int8[]) AS level (priority, from_at, from_id)
     CROSS JOIN LATERAL (
           SELECT j.id, j.name, j.run_at, j.created_at, j.started_at, j.lease_until, j.attempt, j.max_attempts,
                  j.worker, j.error, j.due_at, j.token, j.group_key, j.headers ->> 'tags' AS tags
             FROM lockapi.job AS j
            WHERE j.namespace = $1::text AND j.queue = $2::text AND j.priority = level.priority
              -- One lower bound: of two, the index would be read from the wrong one on.
              AND (j.run_at, j.id + 0) > (greatest(timestamptz 'epoch' + level.from_at * interval '1 microsecond',
                                                   CASE WHEN $3::text = 'delayed' THEN pg_catalog.statement_timestamp() END),
                                          level.from_id)
              AND j.run_at <= CASE WHEN $3::text = ANY (ARRAY['ready', 'running']) THEN pg_catalog.statement_timestamp()
                                   ELSE timestamptz 'infinity' END
            ORDER BY j.run_at, j.id + 0
            LIMIT $9::int8) AS o
     -- Level by level, as unnest() returns them: no entry of the next is read before the last of the one before.
     LIMIT $9::int8
), failed AS MATERIALIZED (
    SELECT a.id, a.name, a.run_at, a.created_at, a.started_at, a.completed_at, a.attempt, a.max_attempts,
           a.priority, a.worker, a.error, a.token, a.group_key, a.headers ->> 'tags' AS tags
      FROM lockapi.job_archive AS a
     WHERE $3::text = 'failed'
       AND a.namespace = $1::text AND a.queue = $2::text AND a.status = 'failed' AND a.id + 0 < $8::int8
     ORDER BY a.id + 0 DESC
     LIMIT $9::int8
), recent AS MATERIALIZED (
    SELECT a.id, a.name, a.run_at, a.created_at, a.started_at, a.completed_at, a.attempt, a.max_attempts,
           a.priority, a.worker, a.error, a.namespace, a.queue, a.status, a.token, a.group_key,
           a.headers ->> 'tags' AS tags
      FROM lockapi.job_archive AS a
     WHERE $3::text = ANY (ARRAY['completed', 'cancelled']) AND a.id < $8::int8
     ORDER BY a.id DESC
     LIMIT $9::int8
), found AS (
    SELECT l.id, l.name, l.priority, l.attempt, l.max_attempts, l.run_at, l.created_at, l.started_at,
           NULL::timestamptz AS ended_at, l.lease_until, l.worker, l.error, l.state, l.due_at, l.token,
           l.group_key, l.tags
      FROM (SELECT l.*, CASE WHEN l.lease_until > pg_catalog.clock_timestamp() THEN 'running'
                             WHEN l.run_at <= pg_catalog.statement_timestamp() THEN 'ready' ELSE 'delayed' END AS state
              FROM live AS l) AS l
     WHERE $3::text = '' OR l.state = $3::text
     UNION ALL
    SELECT f.id, f.name, f.priority, f.attempt, f.max_attempts, f.run_at, f.created_at, f.started_at,
           f.completed_at, NULL, f.worker, f.error, 'failed', NULL, f.token,
           f.group_key, f.tags
      FROM failed AS f
     UNION ALL
    SELECT r.id, r.name, r.priority, r.attempt, r.max_attempts, r.run_at, r.created_at, r.started_at,
           r.completed_at, NULL, r.worker, r.error, r.status, NULL, r.token,
           r.group_key, r.tags
      FROM recent AS r
     WHERE r.namespace = $1::text AND r.queue = $2::text AND r.status = $3::text
), listed AS MATERIALIZED (
    SELECT f.*
      FROM found AS f
     WHERE ($4::text = '' OR f.name = $4::text)
       AND ($11::text = '' OR f.group_key = $11::text)
       AND ($12::text = '' OR $12::text = ANY (pg_catalog.string_to_array(f.tags, ',')))
       AND f.created_at >= timestamptz 'epoch' + $13::int8 * interval '1 microsecond'
       AND f.created_at < timestamptz 'epoch' + $14::int8 * interval '1 microsecond'
     ORDER BY CASE WHEN f.ended_at IS NULL THEN f.priority END, CASE WHEN f.ended_at IS NULL THEN f.run_at END,
              CASE WHEN f.ended_at IS NULL THEN f.id ELSE -f.id END
     LIMIT $10::int8
), ends AS (
    (SELECT l.priority, l.run_at, l.id FROM live AS l ORDER BY l.priority DESC, l.run_at DESC, l.id DESC LIMIT 1)
     UNION ALL
    (SELECT f.priority, f.run_at, f.id FROM failed AS f ORDER BY f.id LIMIT 1)
     UNION ALL
    (SELECT r.priority, r.run_at, r.id FROM recent AS r ORDER BY r.id LIMIT 1)
), examined AS (
    SELECT (SELECT pg_catalog.count(*) FROM live) + (SELECT pg_catalog.count(*) FROM failed)
         + (SELECT pg_catalog.count(*) FROM recent) AS n
)
SELECT l.id, l.name, l.priority::int8 AS priority, l.attempt::int8 AS attempt, l.max_attempts::int8 AS max_attempts,
       (extract(epoch FROM l.run_at) * 1000000)::int8 AS run_at,
       (extract(epoch FROM l.created_at) * 1000000)::int8 AS created_at,
       (extract(epoch FROM l.started_at) * 1000000)::int8 AS started_at,
       (extract(epoch FROM l.ended_at) * 1000000)::int8 AS ended_at,
       (extract(epoch FROM l.lease_until - pg_catalog.clock_timestamp()) * 1000000)::int8 AS lease_left,
       l.worker, pg_catalog.left(l.error, 1000) AS error, NULL::int8 AS last, l.state,
       (extract(epoch FROM l.due_at) * 1000000)::int8 AS due_at, p.millionths, p.note, p.reported_at,
       l.group_key, l.tags
  FROM listed AS l
  LEFT JOIN LATERAL (
       SELECT (p.fraction * 1000000)::int8 AS millionths, p.note, (extract(epoch FROM p.reported_at) * 1000000)::int8 AS reported_at
         FROM lockapi.job_progress AS p
        WHERE p.id = l.id AND p.token = coalesce(l.token, p.token) AND l.attempt > 0
       OFFSET 0) AS p ON true
 UNION ALL
SELECT NULL, NULL, e.priority::int8, NULL, NULL, (extract(epoch FROM e.run_at) * 1000000)::int8, NULL, NULL, NULL, NULL,
       NULL, NULL, e.id, NULL, NULL, NULL, NULL, NULL, NULL, NULL
  FROM ends AS e, examined AS x
 WHERE x.n >= $9::int8
