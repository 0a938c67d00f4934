-- Deletes waiting jobs, at most $3 of them.
--
-- Promises: running jobs are not deleted.
-- Where nothing is found, it may have been done by a session that ended while its commit waited for a standby: the
-- statement writes to the WAL, so that its commit waits for that too.
-- Index: job_due to find, job_pkey to delete; no other fits.
-- Race: a job that is being claimed is locked and skipped.
WITH held AS MATERIALIZED (
    SELECT j.id
      FROM lockapi.job AS j
     WHERE j.namespace = $1::text AND j.queue = $2::text AND j.token IS NULL
     ORDER BY j.priority, j.run_at, j.id + 0
     LIMIT $3::int8
       FOR UPDATE OF j SKIP LOCKED
), gone AS (
    DELETE FROM lockapi.job AS j
     WHERE j.id = ANY (ARRAY(SELECT h.id FROM held AS h))
    RETURNING j.id
)
SELECT pg_catalog.count(*)
       + (SELECT pg_catalog.count(pg_catalog.pg_logical_emit_message(true, 'lockapi', '')) * 0
          FROM (SELECT) AS x WHERE NOT EXISTS (SELECT FROM gone)) AS deleted
  FROM gone
