-- Returns which jobs are due and wait, with names other than those in $3: for each name how many there are,
-- and for how long the first has been due, among the first $4 of each priority.
--
-- Promises: reads at most about $4 index entries for each priority. A job that is leased, or was leased
-- before, is not returned, because it has a worker.
-- Index: job_due. Race: none, it only reads.
SELECT o.name, pg_catalog.count(*) AS jobs,
       (extract(epoch FROM pg_catalog.statement_timestamp() - pg_catalog.min(o.run_at)) * 1000000)::int8 AS waited
  FROM unnest(ARRAY[0, 1, 2, 3]::int8[]) AS level (priority)
 CROSS JOIN LATERAL (
       SELECT j.name, j.run_at, j.lease_until
         FROM lockapi.job AS j
        WHERE j.namespace = $1::text AND j.queue = $2::text AND j.priority = level.priority
          AND j.run_at <= pg_catalog.statement_timestamp()
        ORDER BY j.run_at, j.id + 0
        LIMIT $4::int8) AS o
 WHERE o.lease_until IS NULL AND o.name <> ALL ($3::text[])
 GROUP BY o.name
 ORDER BY o.name
