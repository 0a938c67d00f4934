-- Fires tasks: for each request, advances the task to the next time, and records and pushes its runs.
--
-- Promises: a request takes effect only if the task is still enabled, due at the time and of the version that
-- the request names, so only one of several nodes fires it. Advancing the task, recording the run and pushing
-- the job are one transaction: a crash neither loses nor duplicates any of them. A due time is fired once,
-- whatever changes the task went through. If the next time of a task was computed before the clock was set
-- back, it is replaced, without a run. A job stores the time at which it was due as its creation time. While
-- an earlier run has not ended, a run is skipped or held back if the task says so; at most $11 are held back,
-- any more are skipped. Returns the runs.
-- Index: task_pkey; task_run_pkey; job_unique; task_run_held.
-- Race: tasks are locked in the order of their names, and a task that another node has locked is left to that
-- node; version, time and state are checked again on the locked row. Two runs are kept apart by the unique
-- key of their jobs, which only a statement that has locked the task inserts. A job whose end is not
-- committed still exists, and no statement waits for it.
WITH want AS MATERIALIZED (
    SELECT w.*
      FROM unnest($3::text[], $4::int8[], $5::int8[], $6::int8[])
           WITH ORDINALITY AS w (name, version, due, next, n)
), locked AS MATERIALIZED (
    SELECT t.*, w.n, w.next
      FROM want AS w
      JOIN lockapi.task AS t ON t.namespace = $1::text AND t.scheduler = $2::text AND t.name = w.name
                            AND t.name = ANY ($3::text[])
     WHERE t.enabled AND t.version = w.version
       AND t.next_at = timestamptz 'epoch' + w.due * interval '1 microsecond'
       AND (t.next_at <= pg_catalog.clock_timestamp() OR t.changed_at > pg_catalog.clock_timestamp())
     ORDER BY t.name
       FOR UPDATE OF t SKIP LOCKED
), advanced AS (
    UPDATE lockapi.task AS t
       SET version = t.version + 1, changed_at = pg_catalog.clock_timestamp(),
           next_at = CASE WHEN l.next >= 0 THEN timestamptz 'epoch' + l.next * interval '1 microsecond' END
      FROM locked AS l
     WHERE t.namespace = $1::text AND t.scheduler = $2::text AND t.name = l.name
       AND t.name = ANY (ARRAY(SELECT x.name FROM locked AS x))
), runs AS MATERIALIZED (
    SELECT l.name, l.overlap, l.job, l.payload, l.priority, l.max_attempts, f.skipped, f.missed,
           timestamptz 'epoch' + f.fire_at * interval '1 microsecond' AS fire_at,
           EXISTS (SELECT FROM lockapi.job AS j
                    WHERE j.namespace COLLATE "POSIX" = l.namespace AND j.queue COLLATE "POSIX" = l.scheduler
                      AND j.unique_key = 'task/' || l.name OFFSET 0)
               OR (l.overlap = 2
                   AND EXISTS (SELECT FROM lockapi.task_run AS r
                                WHERE r.namespace COLLATE "POSIX" = l.namespace AND r.scheduler COLLATE "POSIX" = l.scheduler
                                  AND r.task COLLATE "POSIX" = l.name AND r.decided = 'held' OFFSET 0)) AS busy,
           (SELECT pg_catalog.count(*) FROM lockapi.task_run AS r
             WHERE r.namespace COLLATE "POSIX" = l.namespace AND r.scheduler COLLATE "POSIX" = l.scheduler
               AND r.task COLLATE "POSIX" = l.name AND r.decided = 'held') AS held
      FROM locked AS l
      JOIN unnest($7::int8[], $8::int8[], $9::bool[], $10::int8[]) AS f (n, fire_at, skipped, missed) ON f.n = l.n
     WHERE NOT EXISTS (SELECT FROM lockapi.task_run AS r
                        WHERE r.namespace = l.namespace AND r.scheduler = l.scheduler AND r.task = l.name
                          AND r.fire_at = timestamptz 'epoch' + f.fire_at * interval '1 microsecond' OFFSET 0)
), ranked AS MATERIALIZED (
    SELECT r.*, pg_catalog.row_number() OVER (PARTITION BY r.name, r.skipped ORDER BY r.fire_at) AS nth
      FROM runs AS r
), decided AS MATERIALIZED (
    SELECT d.*, CASE WHEN d.fate = 'fired' THEN pg_catalog.nextval('lockapi.job_seq') END AS id
      FROM (SELECT r.*,
                   CASE WHEN r.skipped THEN 'missed'
                        WHEN r.overlap = 0 OR (r.nth = 1 AND NOT r.busy) THEN 'fired'
                        WHEN r.overlap = 2 AND r.held + r.nth - (NOT r.busy)::int <= $11::int8 THEN 'held'
                        ELSE 'overlap' END AS fate
              FROM ranked AS r) AS d
), pushed AS (
    INSERT INTO lockapi.job (id, run_at, created_at, max_attempts, priority, namespace, queue, unique_key, name, payload, task)
    SELECT d.id, pg_catalog.statement_timestamp(), d.fire_at, d.max_attempts, d.priority,
           $1::text, $2::text, CASE WHEN d.overlap <> 0 THEN 'task/' || d.name END, d.job, d.payload, d.name
      FROM decided AS d
     WHERE d.id IS NOT NULL
     ORDER BY d.name, d.fire_at
), recorded AS (
    INSERT INTO lockapi.task_run (job, decided, fire_at, fired_at, missed, namespace, scheduler, task, fired_by, error)
    SELECT d.id,
           CASE d.fate WHEN 'fired' THEN NULL WHEN 'held' THEN 'held' ELSE 'skipped' END,
           d.fire_at, pg_catalog.clock_timestamp(), d.missed, $1::text, $2::text, d.name, $12::text,
           CASE d.fate WHEN 'missed' THEN 'its time was missed'
                       WHEN 'overlap' THEN 'the run before had not ended' END
      FROM decided AS d
     ORDER BY d.name, d.fire_at
)
SELECT d.name, (extract(epoch FROM d.fire_at) * 1000000)::int8 AS fire_at, d.id AS job, d.fate,
       (SELECT pg_catalog.count(pg_catalog.pg_notify('lockapi', t.topic::text)) FROM unnest($13::int8[]) AS t (topic)
         WHERE EXISTS (SELECT FROM decided AS e WHERE e.id IS NOT NULL)) AS told
  FROM decided AS d
