-- Deletes what was completed or cancelled more than $3 microseconds ago, and idempotency keys that
-- are older than a day, at most $4 of each.
--
-- Promises: dead letters stay until somebody redrives or discards them, and runs of tasks for as long
-- as the log of their scheduler. Answers how many were
-- deleted of whichever there were more.
-- Index: job_archive_completed, task_run_job, and push_key_created: the oldest first, so it stops at the first
-- that is young enough.
-- Race: two that sweep at the same time skip each other's rows.
WITH old AS MATERIALIZED (
    SELECT a.id
      FROM lockapi.job_archive AS a
     WHERE a.completed_at < pg_catalog.statement_timestamp() - $3::int8 * interval '1 microsecond'
       AND a.namespace = $1::text AND a.queue = $2::text AND a.status <> 'failed'
       AND NOT EXISTS (SELECT FROM lockapi.task_run AS r WHERE r.job = a.id)
     ORDER BY a.completed_at
     LIMIT $4::int8
       FOR UPDATE OF a SKIP LOCKED
), gone AS (
    DELETE FROM lockapi.job_archive AS a
     USING old AS o
     WHERE a.id = o.id
    RETURNING 1
), stale AS MATERIALIZED (
    SELECT k.namespace, k.queue, k.key
      FROM lockapi.push_key AS k
     WHERE k.created_at < pg_catalog.statement_timestamp() - interval '1 day'
     ORDER BY k.created_at
     LIMIT $4::int8
       FOR UPDATE OF k SKIP LOCKED
), forgotten AS (
    DELETE FROM lockapi.push_key AS k
     USING stale AS s
     WHERE k.namespace = s.namespace AND k.queue = s.queue AND k.key = s.key
    RETURNING 1
)
SELECT greatest((SELECT pg_catalog.count(*) FROM gone), (SELECT pg_catalog.count(*) FROM forgotten)) AS deleted
