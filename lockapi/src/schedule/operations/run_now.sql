-- Fires a task at once, due or not, enabled or not; its next due time does not change.
--
-- Promises: the run is subject to the overlap setting of the task. Returns the outcome: no row if there is no
-- such task, or if it does not have version $7.
-- Index: task_pkey; task_run_pkey; task_run_held; job_unique.
-- Race: every fire raises the version, so this statement reads what the previous fire wrote. The time of the
-- run is the time of the lock.
WITH locked AS MATERIALIZED (
    SELECT t.*
      FROM lockapi.task AS t
     WHERE t.namespace = $1::text AND t.scheduler = $2::text AND t.name = $3::text AND t.version = $7::int8
       FOR UPDATE OF t
), noted AS (
    UPDATE lockapi.task AS t
       SET version = t.version + 1
      FROM locked AS l
     WHERE t.namespace = $1::text AND t.scheduler = $2::text AND t.name = l.name
       AND t.name = ANY (ARRAY(SELECT x.name FROM locked AS x))
), run AS MATERIALIZED (
    SELECT l.*, pg_catalog.clock_timestamp() AS fire_at,
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
), decided AS MATERIALIZED (
    SELECT d.*, CASE WHEN d.fate = 'fired' THEN pg_catalog.nextval('lockapi.job_seq') END AS id
      FROM (SELECT r.*,
                   CASE WHEN r.overlap = 0 OR NOT r.busy THEN 'fired'
                        WHEN r.overlap = 2 AND r.held < $4::int8 THEN 'held'
                        ELSE 'overlap' END AS fate
              FROM run AS r) AS d
), pushed AS (
    INSERT INTO lockapi.job (id, run_at, created_at, max_attempts, priority, namespace, queue, unique_key, name, payload, task)
    SELECT d.id, pg_catalog.statement_timestamp(), d.fire_at, d.max_attempts, d.priority,
           $1::text, $2::text, CASE WHEN d.overlap <> 0 THEN 'task/' || d.name END, d.job, d.payload, d.name
      FROM decided AS d
     WHERE d.id IS NOT NULL
), recorded AS (
    INSERT INTO lockapi.task_run (job, decided, fire_at, fired_at, namespace, scheduler, task, fired_by, error)
    SELECT d.id, CASE d.fate WHEN 'fired' THEN NULL WHEN 'held' THEN 'held' ELSE 'skipped' END,
           d.fire_at, d.fire_at, $1::text, $2::text, d.name, $5::text,
           CASE d.fate WHEN 'overlap' THEN 'the run before had not ended' END
      FROM decided AS d
)
SELECT d.name, (extract(epoch FROM d.fire_at) * 1000000)::int8 AS fire_at, d.id AS job, d.fate,
       (SELECT pg_catalog.count(pg_catalog.pg_notify('lockapi', t.topic::text)) FROM unnest($6::int8[]) AS t (topic)) AS told
  FROM decided AS d
