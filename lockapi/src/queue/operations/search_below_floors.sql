-- Finds jobs that can be claimed before the places where claims start: for each priority in $3 the first one
-- after the time in $4, and not after the time in $5 and the number in $6.
--
-- Promises: only jobs with the names in $7, if there are any, and with no name that is paused; jobs that the lost claims in $8 took are
-- included. A last row returns how many entries of the index were read, as the server counts them.
-- Index: job_due, one range for each priority, and paused_name_pkey. Race: none, it only reads; a claim checks again.
WITH start AS MATERIALIZED (
    SELECT pg_catalog.pg_stat_get_xact_tuples_returned('lockapi.job_due'::regclass) AS read,
           ARRAY(SELECT p.name
                   FROM lockapi.paused_name AS p
                  WHERE p.namespace = $1::text AND p.queue = $2::text
                    AND coalesce(p.paused_until > pg_catalog.statement_timestamp(), true)
                  ORDER BY p.name) AS paused
), found AS MATERIALIZED (
    SELECT level.priority, p.run_at, p.id
      FROM start AS s
     CROSS JOIN unnest($3::int8[], $4::int8[], $5::int8[], $6::int8[]) AS level (priority, from_at, to_at, to_id)
     CROSS JOIN LATERAL (
           SELECT j.run_at, j.id
             FROM lockapi.job AS j
            WHERE s.read IS NOT NULL
              AND j.namespace = $1::text AND j.queue = $2::text AND j.priority = level.priority
              AND (pg_catalog.cardinality($7::text[]) = 0 OR j.name = ANY ($7::text[]))
              AND j.name <> ALL (s.paused)
              AND j.run_at > timestamptz 'epoch' + level.from_at * interval '1 microsecond'
              AND (j.run_at, j.id + 0) <= (timestamptz 'epoch' + level.to_at * interval '1 microsecond', level.to_id)
              AND (j.lease_until IS NULL OR j.lease_until <= pg_catalog.clock_timestamp()
                   OR j.claim = ANY ($8::int8[]))
            ORDER BY j.run_at, j.id + 0
            LIMIT 1) AS p
)
SELECT f.priority, (extract(epoch FROM f.run_at) * 1000000)::int8 AS run_at, f.id, NULL::int8 AS read
  FROM found AS f
 UNION ALL
SELECT NULL, NULL, NULL,
       CASE WHEN t.n IS NOT NULL
            THEN pg_catalog.pg_stat_get_xact_tuples_returned('lockapi.job_due'::regclass) - (SELECT s.read FROM start AS s) END
  FROM (SELECT pg_catalog.count(*) AS n FROM found) AS t
