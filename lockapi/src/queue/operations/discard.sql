-- Deletes dead letters: those numbered in $3, at most $4 of the oldest if there are no numbers.
--
-- Index: job_archive_failed and job_archive_pkey. Race: rows that somebody redrives are skipped.
WITH held AS MATERIALIZED (
    SELECT a.id
      FROM lockapi.job_archive AS a
     WHERE a.namespace = $1::text AND a.queue = $2::text AND a.status = 'failed'
       AND (pg_catalog.cardinality($3::int8[]) = 0 OR a.id = ANY ($3::int8[]))
     ORDER BY a.id
     LIMIT $4::int8
       FOR UPDATE OF a SKIP LOCKED
), gone AS (
    DELETE FROM lockapi.job_archive AS a
     USING held AS h
     WHERE a.id = h.id
    RETURNING 1
)
SELECT pg_catalog.count(*) AS deleted FROM gone
