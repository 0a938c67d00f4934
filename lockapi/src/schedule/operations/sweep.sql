-- Deletes the log of runs that were fired more than $3 microseconds ago, at most $4, and their archived jobs.
--
-- Promises: runs that have not ended stay.
-- Index: task_run_fired, the oldest first; job_pkey and job_archive_pkey.
-- Race: two that sweep at the same time skip each other's rows.
WITH old AS MATERIALIZED (
    SELECT r.task, r.fire_at, r.job
      FROM lockapi.task_run AS r
     WHERE r.namespace = $1::text AND r.scheduler = $2::text
       AND r.fired_at < pg_catalog.statement_timestamp() - $3::int8 * interval '1 microsecond'
       AND r.decided IS DISTINCT FROM 'held'
       AND NOT EXISTS (SELECT FROM lockapi.job AS j WHERE j.id = r.job)
     ORDER BY r.fired_at
     LIMIT $4::int8
       FOR UPDATE OF r SKIP LOCKED
), gone AS (
    DELETE FROM lockapi.task_run AS r
     USING old AS o
     WHERE r.namespace = $1::text AND r.scheduler = $2::text AND r.task = o.task AND r.fire_at = o.fire_at
    RETURNING 1
), forgotten AS (
    DELETE FROM lockapi.job_archive AS a
     USING old AS o
     WHERE a.id = o.job
)
SELECT pg_catalog.count(*) AS deleted FROM gone
