-- Deletes waiting jobs: those among the $6 waiting ones that follow the priority $3, the time $4 and the number $5.
--
-- Promises: running jobs are not deleted. Returns how many were deleted, how many were examined, and the place of the last
-- examined one.
-- Where nothing is found, it may have been done by a session that ended while its commit waited for a standby: the
-- statement writes to the WAL, so that its commit waits for that too.
-- Index: job_due to find, job_pkey to lock and to delete; no other fits. The next part starts after the place of this one,
-- so entries of deleted jobs that cannot be vacuumed yet are read once.
-- Race: a job that is being claimed is locked and skipped, and whether it waits is checked again on the locked row.
WITH part AS MATERIALIZED (
    SELECT j.id, j.priority, j.run_at
      FROM lockapi.job AS j
     WHERE j.namespace = $1::text AND j.queue = $2::text AND j.token IS NULL
       AND (j.priority, j.run_at, j.id + 0)
           > ($3::int8, timestamptz 'epoch' + $4::int8 * interval '1 microsecond', $5::int8)
     ORDER BY j.priority, j.run_at, j.id + 0
     LIMIT $6::int8
), held AS MATERIALIZED (
    SELECT j.id
      FROM lockapi.job AS j
     WHERE j.id = ANY (ARRAY(SELECT p.id FROM part AS p)) AND j.token IS NULL
       FOR UPDATE OF j SKIP LOCKED
), gone AS (
    DELETE FROM lockapi.job AS j
     WHERE j.id = ANY (ARRAY(SELECT h.id FROM held AS h))
    RETURNING j.id
)
SELECT (SELECT pg_catalog.count(*) FROM gone)
       + (SELECT pg_catalog.count(pg_catalog.pg_logical_emit_message(true, 'lockapi', '')) * 0
          FROM (SELECT) AS x WHERE NOT EXISTS (SELECT FROM gone)) AS deleted,
       (SELECT pg_catalog.count(*) FROM part) AS seen,
       l.priority::int8 AS priority, (extract(epoch FROM l.run_at) * 1000000)::int8 AS run_at, l.id
  FROM (SELECT) AS one
  LEFT JOIN LATERAL (
       SELECT p.priority, p.run_at, p.id FROM part AS p ORDER BY p.priority DESC, p.run_at DESC, p.id DESC LIMIT 1) AS l ON true
