-- Counts the jobs of a queue, at most $3 for each priority and state.
--
-- Promises: reads at most four times $3 index entries of jobs that are due and as many of those that are delayed, and $3
-- of dead letters, however many jobs there are. Those that are delayed are counted in the index alone where vacuum has
-- been, so they are in no further order.
-- Index: job_due and job_archive_failed, and queue_pkey. Race: none, it only reads.
SELECT d.ready, d.running, l.delayed, f.dead, d.oldest, d.more AS more_due, l.more AS more_delayed, f.more AS more_dead,
       p.paused IS NOT NULL AS paused, p.resumes_in
  FROM (SELECT pg_catalog.sum(o.n - o.running)::int8 AS ready, pg_catalog.sum(o.running)::int8 AS running,
               (extract(epoch FROM pg_catalog.clock_timestamp() - pg_catalog.min(o.oldest)) * 1000000)::int8 AS oldest,
               pg_catalog.bool_or(o.n = $3::int8) AS more
          FROM unnest(ARRAY[0, 1, 2, 3]::int8[]) AS level (priority)
         CROSS JOIN LATERAL (
               SELECT pg_catalog.count(*) AS n,
                      pg_catalog.count(*) FILTER (WHERE r.lease_until > pg_catalog.clock_timestamp()) AS running,
                      pg_catalog.min(r.run_at)
                          FILTER (WHERE r.lease_until IS NULL OR r.lease_until <= pg_catalog.clock_timestamp()) AS oldest
                 FROM (SELECT j.lease_until, j.run_at
                         FROM lockapi.job AS j
                        WHERE j.namespace = $1::text AND j.queue = $2::text AND j.priority = level.priority
                          AND j.run_at <= pg_catalog.statement_timestamp()
                        ORDER BY j.run_at, j.id + 0
                        LIMIT $3::int8) AS r) AS o) AS d
 CROSS JOIN (SELECT pg_catalog.sum(o.n)::int8 AS delayed, pg_catalog.bool_or(o.n = $3::int8) AS more
               FROM unnest(ARRAY[0, 1, 2, 3]::int8[]) AS level (priority)
              CROSS JOIN LATERAL (
                    SELECT pg_catalog.count(*) AS n
                      FROM (SELECT
                              FROM lockapi.job AS j
                             WHERE j.namespace = $1::text AND j.queue = $2::text AND j.priority = level.priority
                               AND j.run_at > pg_catalog.statement_timestamp()
                             ORDER BY j.run_at
                             LIMIT $3::int8) AS r) AS o) AS l
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
