-- Deletes dead letters: the $5 oldest of those with a larger number than $4, and of those numbered in $3 unless there are no
-- numbers.
--
-- Promises: no other row is deleted. Returns how many were deleted, how many were examined, and the number of the last
-- examined one.
-- Where nothing is found, it may have been done by a session that ended while its commit waited for a standby: the
-- statement writes to the WAL, so that its commit waits for that too.
-- Index: job_archive_failed to find, job_archive_pkey to delete. The next part starts after the number of this one, so
-- entries of deleted letters that cannot be vacuumed yet are read once.
-- Race: rows that are being redriven are skipped.
WITH named AS MATERIALIZED (
    SELECT a.id
      FROM lockapi.job_archive AS a
     WHERE a.namespace = $1::text AND a.queue = $2::text AND a.status = 'failed' AND a.id + 0 = ANY ($3::int8[])
       AND a.id + 0 > $4::int8
     ORDER BY a.id + 0
     LIMIT $5::int8
       FOR UPDATE OF a SKIP LOCKED
), oldest AS MATERIALIZED (
    SELECT a.id
      FROM lockapi.job_archive AS a
     WHERE pg_catalog.cardinality($3::int8[]) = 0
       AND a.namespace = $1::text AND a.queue = $2::text AND a.status = 'failed'
       AND a.id + 0 > $4::int8
     ORDER BY a.id + 0
     LIMIT $5::int8
       FOR UPDATE OF a SKIP LOCKED
), held AS MATERIALIZED (
    SELECT n.id FROM named AS n
     UNION ALL
    SELECT o.id FROM oldest AS o
), gone AS (
    DELETE FROM lockapi.job_archive AS a
     WHERE a.id = ANY (ARRAY(SELECT h.id FROM held AS h))
    RETURNING 1
)
SELECT pg_catalog.count(*)
       + (SELECT pg_catalog.count(pg_catalog.pg_logical_emit_message(true, 'lockapi', '')) * 0
          FROM (SELECT) AS x WHERE NOT EXISTS (SELECT FROM gone)) AS deleted,
       (SELECT pg_catalog.count(*) FROM held) AS seen,
       (SELECT pg_catalog.max(h.id) FROM held AS h) AS last
  FROM gone
