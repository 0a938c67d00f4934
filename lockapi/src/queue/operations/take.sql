-- Claims and completes jobs in the transaction of the caller: at most $3 of those that are due.
--
-- Promises: commit completes them; after a rollback they are as they were. Until then nobody else
-- is given them, for as long as the transaction lasts.
-- Index: job_due, one range for each priority.
-- Race: as for a claim: rows that somebody has locked are skipped, and the lease is judged on the
-- locked row.
WITH picked AS MATERIALIZED (
    SELECT p.id
      FROM unnest(ARRAY[0, 1, 2, 3]::int8[]) AS lane (priority)
     CROSS JOIN LATERAL (
           SELECT j.id
             FROM lockapi.job AS j
            WHERE j.namespace = $1::text AND j.queue = $2::text AND j.priority = lane.priority
              AND j.run_at <= pg_catalog.statement_timestamp()
              AND (j.lease_until IS NULL OR j.lease_until <= pg_catalog.clock_timestamp())
            ORDER BY j.run_at, j.id
            LIMIT $3::int8
              FOR UPDATE OF j SKIP LOCKED) AS p
     WHERE NOT EXISTS (SELECT FROM lockapi.queue AS q
                        WHERE q.namespace = $1::text AND q.name = $2::text AND q.paused)
     LIMIT $3::int8
), done AS (
    DELETE FROM lockapi.job AS j
     USING picked AS p
     WHERE j.id = p.id
    RETURNING j.*
), kept AS (
    INSERT INTO lockapi.job_archive (id, status, run_at, created_at, started_at, attempt, max_attempts,
                                     priority, worker, error, namespace, queue, unique_key, name, payload)
    SELECT d.id, 'completed', d.run_at, d.created_at, pg_catalog.clock_timestamp(), d.attempt + 1, d.max_attempts,
           d.priority, $4::text, d.error, d.namespace, d.queue, d.unique_key, d.name, d.payload
      FROM done AS d
     WHERE $5::bool OR d.task IS NOT NULL
)
SELECT d.id, d.attempt::int8, d.max_attempts::int8, d.priority::int8,
       (extract(epoch FROM d.run_at) * 1000000)::int8 AS run_at,
       (extract(epoch FROM d.created_at) * 1000000)::int8 AS created_at,
       d.name, d.payload::text AS payload
  FROM done AS d
 ORDER BY d.priority, d.run_at, d.id
