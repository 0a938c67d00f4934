-- Reads the history of the queue $2 of the namespace $1, of one name of jobs or, with NULL as $3, of all together: the hours of the
-- last week, or the minutes of the last hour ($4).
--
-- Promises: one row for each of these in which an attempt ended, in the order of time; what is in memory of programs is missing. At most $5
-- rows of each table are read, the latest first: with more names than that allows, the oldest minutes are missing.
-- Index: job_history_pkey and job_history_part_pkey, one range each.
-- Race: none, it only reads; a sweep moves rows from one table to the other in one transaction, and both are read in one snapshot.
WITH span AS MATERIALIZED (
    SELECT CASE WHEN $4::bool THEN pg_catalog.date_trunc('hour', pg_catalog.statement_timestamp(), 'UTC') - interval '167 hours'
                ELSE pg_catalog.date_trunc('minute', pg_catalog.statement_timestamp(), 'UTC') - interval '59 minutes' END AS since
), found AS MATERIALIZED (
    SELECT o.at, o.completed, o.failed, o.dead, o.waited, o.ran, o.waits, o.runs
      FROM span AS s
     CROSS JOIN LATERAL (
           SELECT h.at, h.completed, h.failed, h.dead, h.waited, h.ran, h.waits, h.runs
             FROM lockapi.job_history AS h
            WHERE h.namespace = $1::text AND h.queue = $2::text AND h.hourly = $4::bool AND h.at >= s.since
              AND coalesce(h.name = $3::text, true)
            ORDER BY h.namespace DESC, h.queue DESC, h.hourly DESC, h.at DESC, h.name DESC
            LIMIT $5::int8) AS o
     UNION ALL
    SELECT CASE WHEN $4::bool THEN pg_catalog.date_trunc('hour', o.minute, 'UTC') ELSE o.minute END,
           o.completed, o.failed, o.dead, o.waited, o.ran, o.waits, o.runs
      FROM span AS s
     CROSS JOIN LATERAL (
           SELECT p.minute, p.completed, p.failed, p.dead, p.waited, p.ran, p.waits, p.runs
             FROM lockapi.job_history_part AS p
            WHERE p.namespace = $1::text AND p.queue = $2::text AND p.minute >= s.since
              AND coalesce(p.name = $3::text, true)
            ORDER BY p.namespace DESC, p.queue DESC, p.minute DESC, p.name DESC, p.part DESC
            LIMIT $5::int8) AS o
), counted AS (
    SELECT f.at, u.n,
           pg_catalog.sum(CASE WHEN u.n = 1 THEN f.completed END) AS completed,
           pg_catalog.sum(CASE WHEN u.n = 1 THEN f.failed END) AS failed,
           pg_catalog.sum(CASE WHEN u.n = 1 THEN f.dead END) AS dead,
           pg_catalog.sum(CASE WHEN u.n = 1 THEN f.waited END) AS waited,
           pg_catalog.sum(CASE WHEN u.n = 1 THEN f.ran END) AS ran,
           pg_catalog.sum(u.waits) AS waits, pg_catalog.sum(u.runs) AS runs
      FROM found AS f
     CROSS JOIN LATERAL unnest(f.waits, f.runs) WITH ORDINALITY AS u (waits, runs, n)
     GROUP BY f.at, u.n
)
SELECT (extract(epoch FROM c.at) * 1000000)::int8 AS at,
       least(pg_catalog.sum(c.completed), 9223372036854775807)::int8 AS completed,
       least(pg_catalog.sum(c.failed), 9223372036854775807)::int8 AS failed,
       least(pg_catalog.sum(c.dead), 9223372036854775807)::int8 AS dead,
       least(pg_catalog.sum(c.waited), 9223372036854775807)::int8 AS waited,
       least(pg_catalog.sum(c.ran), 9223372036854775807)::int8 AS ran,
       pg_catalog.array_agg(least(c.waits, 9223372036854775807)::int8 ORDER BY c.n) FILTER (WHERE c.waits IS NOT NULL) AS waits,
       pg_catalog.array_agg(least(c.runs, 9223372036854775807)::int8 ORDER BY c.n) FILTER (WHERE c.runs IS NOT NULL) AS runs
  FROM counted AS c
 GROUP BY c.at
 ORDER BY c.at
