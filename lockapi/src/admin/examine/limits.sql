-- Reads which rate limits refuse whatever is asked of them. $1 is how long a block has to last at least, in nanoseconds.
--
-- Promises: a row for each namespace that has some, with the name of the fault, how many, and one of them; of the first
-- 3,000 rows. Other refusals write nothing, and quotas are those of the programs: neither can be read here.
-- Index: the primary key of rate_limit. Race: none, it only reads.
WITH part AS MATERIALIZED (
    SELECT l.namespace, l.key, l.blocked_until, l.reserved
      FROM lockapi.rate_limit AS l
     ORDER BY l.key, l.namespace
     LIMIT 3000
), clock AS MATERIALIZED (
    SELECT lockapi.clock() AS now
)
SELECT 'blocked_limit' AS fault, p.namespace || '/' || pg_catalog.min(p.key) AS subject,
       CASE WHEN pg_catalog.count(*) = 1 THEN 'it is' ELSE pg_catalog.count(*) || ' keys, this one among them, are' END
       || ' blocked for up to '
       || pg_catalog.justify_hours(pg_catalog.date_trunc('second', pg_catalog.max(p.blocked_until - c.now) / 1000000000.0 * interval '1 second'))
       AS detail
  FROM part AS p CROSS JOIN clock AS c
 WHERE p.blocked_until - c.now >= $1::int8
 GROUP BY p.namespace
 UNION ALL
SELECT 'full_limit', p.namespace || '/' || pg_catalog.min(p.key),
       pg_catalog.max(p.reserved) || ' of 10000 reservations are open'
       || CASE WHEN pg_catalog.count(*) = 1 THEN '' ELSE ' in one of ' || pg_catalog.count(*) || ' such keys, of which this is the first' END
  FROM part AS p
 WHERE p.reserved > 8000
 GROUP BY p.namespace
 ORDER BY 1, 2
