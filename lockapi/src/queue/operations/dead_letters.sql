-- Reads dead letters, at most $4 of those numbered above $3, the oldest first.
--
-- Index: job_archive_failed, in the order of id + 0; no other index fits. Race: none, it only reads.
SELECT a.id, a.name, a.payload::text AS payload, a.error, a.attempt::int8, a.worker,
       (extract(epoch FROM a.created_at) * 1000000)::int8 AS created_at,
       (extract(epoch FROM a.completed_at) * 1000000)::int8 AS failed_at,
       a.errors::text AS errors, a.headers::text AS headers
  FROM lockapi.job_archive AS a
 WHERE a.namespace = $1::text AND a.queue = $2::text AND a.status = 'failed' AND a.id + 0 > $3::int8
 ORDER BY a.id + 0
 LIMIT $4::int8
