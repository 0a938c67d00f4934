-- Deletes the log of runs that were fired more than $3 microseconds ago, at most $4, and their archived jobs.
--
-- Promises: runs that have not ended stay.
-- Index: task_run_fired, the oldest first; job_pkey and job_archive_pkey. No other fits.
-- Race: two that sweep at the same time skip each other's rows. A row that was updated while it was being
-- locked is not where the snapshot has it, and is left for the next time.
WITH old AS MATERIALIZED (
    SELECT r.ctid
      FROM lockapi.task_run AS r
     WHERE r.namespace || '' = $1::text AND r.scheduler || '' = $2::text
       AND r.fired_at < pg_catalog.statement_timestamp() - $3::int8 * interval '1 microsecond'
       AND r.decided IS DISTINCT FROM 'held'
       AND NOT EXISTS (SELECT FROM lockapi.job AS j WHERE j.id = r.job OFFSET 0)
     ORDER BY r.fired_at
     LIMIT $4::int8
       FOR UPDATE OF r SKIP LOCKED
), gone AS (
    DELETE FROM lockapi.task_run AS r
     WHERE r.ctid = ANY (ARRAY(SELECT o.ctid FROM old AS o))
    RETURNING r.job
), forgotten AS (
    DELETE FROM lockapi.job_archive AS a
     WHERE a.id = ANY (ARRAY(SELECT g.job FROM gone AS g))
)
SELECT pg_catalog.count(*) AS deleted FROM gone
