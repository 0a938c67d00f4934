-- Releases runs that were held back: for each task the one that was due first, once all runs of the task that
-- were fired have ended.
--
-- Promises: the record gets its job in the same transaction. Tasks that are disabled wait.
-- Index: task_run_held; task_pkey; job_unique.
-- Race: tasks are locked in the order of their names, and a task that another node has locked is left to that
-- node. The statement raises the version, so that a node that read the task before fires nothing.
WITH waiting AS MATERIALIZED (
    SELECT DISTINCT r.task
      FROM lockapi.task_run AS r
     WHERE r.namespace COLLATE "POSIX" = $1::text AND r.scheduler COLLATE "POSIX" = $2::text AND r.decided = 'held'
), locked AS MATERIALIZED (
    SELECT t.*
      FROM waiting AS w
      JOIN lockapi.task AS t ON t.namespace = $1::text AND t.scheduler = $2::text AND t.name = w.task
                            AND t.name = ANY (ARRAY(SELECT x.task FROM waiting AS x))
     WHERE t.enabled
       AND NOT EXISTS (SELECT FROM lockapi.job AS j
                        WHERE j.namespace COLLATE "POSIX" = t.namespace AND j.queue COLLATE "POSIX" = t.scheduler
                          AND j.unique_key = 'task/' || t.name OFFSET 0)
     ORDER BY t.name
       FOR UPDATE OF t SKIP LOCKED
), first AS MATERIALIZED (
    SELECT l.name, l.job, l.payload, l.priority, l.max_attempts, f.fire_at, pg_catalog.nextval('lockapi.job_seq') AS id
      FROM locked AS l
     CROSS JOIN LATERAL (
           SELECT r.fire_at
             FROM lockapi.task_run AS r
            WHERE r.namespace COLLATE "POSIX" = l.namespace AND r.scheduler COLLATE "POSIX" = l.scheduler
              AND r.task COLLATE "POSIX" = l.name AND r.decided = 'held'
            ORDER BY r.fire_at
            LIMIT 1
              FOR UPDATE OF r) AS f
), pushed AS (
    INSERT INTO lockapi.job (id, run_at, created_at, max_attempts, priority, namespace, queue, unique_key, name, payload, task)
    SELECT f.id, pg_catalog.statement_timestamp(), f.fire_at, f.max_attempts, f.priority,
           $1::text, $2::text, 'task/' || f.name, f.job, f.payload, f.name
      FROM first AS f
     ORDER BY f.name
    ON CONFLICT (namespace, queue, unique_key) WHERE unique_key IS NOT NULL DO NOTHING
    RETURNING id
), noted AS (
    UPDATE lockapi.task AS t
       SET version = t.version + 1
      FROM first AS f
     WHERE t.namespace = $1::text AND t.scheduler = $2::text AND t.name = f.name
       AND t.name = ANY (ARRAY(SELECT x.name FROM first AS x))
), recorded AS (
    UPDATE lockapi.task_run AS r
       SET job = f.id, decided = NULL
      FROM first AS f
      JOIN pushed AS p ON p.id = f.id
     WHERE r.namespace COLLATE "POSIX" = $1::text AND r.scheduler COLLATE "POSIX" = $2::text AND r.decided = 'held'
       AND r.task COLLATE "POSIX" = f.name AND r.fire_at = f.fire_at
       AND r.task COLLATE "POSIX" = ANY (ARRAY(SELECT x.name FROM first AS x))
    RETURNING r.task
)
SELECT pg_catalog.count(*) AS released,
       (SELECT pg_catalog.count(pg_catalog.pg_notify('lockapi', t.topic::text)) FROM unnest($3::int8[]) AS t (topic)) AS told
  FROM recorded
