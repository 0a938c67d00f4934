-- Counts the jobs of a queue, at most $3 for each priority and state.
--
-- Promises: reads at most about four times $3 index entries for each state, however many jobs there are.
-- Index: job_due and job_archive_failed, and queue_pkey. Race: none, it only reads.
SELECT d.ready, d.running, l.delayed, f.dead, d.oldest, d.more AS more_due, l.more AS more_delayed, f.more AS more_dead,
       p.paused IS NOT NULL AS paused, p.resumes_in
  FROM (SELECT pg_catalog.count(*) FILTER (WHERE o.lease_until IS NULL OR o.lease_until <= pg_catalog.clock_timestamp()) AS ready,
               pg_catalog.count(*) FILTER (WHERE o.lease_until > pg_catalog.clock_timestamp()) AS running,
               (extract(epoch FROM pg_catalog.clock_timestamp() - pg_catalog.min(o.run_at)
                   FILTER (WHERE o.lease_until IS NULL OR o.lease_until <= pg_catalog.clock_timestamp())) * 1000000)::int8 AS oldest,
               coalesce(pg_catalog.bool_or(o.n = $3::int8), false) AS more
          FROM unnest(ARRAY[0, 1, 2, 3]::int8[]) AS level (priority)
         CROSS JOIN LATERAL (
               SELECT j.lease_until, j.run_at, pg_catalog.row_number() OVER (ORDER BY j.run_at, j.id + 0) AS n
                 FROM lockapi.job AS j
                WHERE j.namespace = $1::text AND j.queue = $2::text AND j.priority = level.priority
                  AND j.run_at <= pg_catalog.statement_timestamp()
                ORDER BY j.run_at, j.id + 0
                LIMIT $3::int8) AS o) AS d
 CROSS JOIN (SELECT pg_catalog.count(*) AS delayed, coalesce(pg_catalog.bool_or(o.n = $3::int8), false) AS more
               FROM unnest(ARRAY[0, 1, 2, 3]::int8[]) AS level (priority)
              CROSS JOIN LATERAL (
                    SELECT pg_catalog.row_number() OVER (ORDER BY j.run_at, j.id + 0) AS n
                      FROM lockapi.job AS j
                     WHERE j.namespace = $1::text AND j.queue = $2::text AND j.priority = level.priority
                       AND j.run_at > pg_catalog.statement_timestamp()
                     ORDER BY j.run_at, j.id + 0
                     LIMIT $3::int8) AS o) AS l
 CROSS JOIN (SELECT pg_catalog.count(*) AS dead, pg_catalog.count(*) = $3::int8 AS more
               FROM (SELECT
                       FROM lockapi.job_archive AS a
                      WHERE a.namespace = $1::text AND a.queue = $2::text AND a.status = 'failed'
                      ORDER BY a.id + 0
                      LIMIT $3::int8) AS o) AS f
  LEFT JOIN (SELECT q.paused,
                    (extract(epoch FROM q.paused_until - pg_catalog.statement_timestamp()) * 1000000)::int8 AS resumes_in
               FROM lockapi.queue AS q
              WHERE q.namespace = $1::text AND q.name = $2::text AND q.paused
                AND coalesce(q.paused_until > pg_catalog.statement_timestamp(), true)) AS p ON true
