-- Reads which tables and indexes of the schema lockapi are many times larger than what is in them.
--
-- Promises: a row for each, with the name of the fault, its name and what was found. It estimates, on the safe side:
-- pages and rows are those that were counted last, widths are those of the statistics, and where this role may not
-- see any, a row is as wide as it can be without TOAST. What is below 64 MB, or less than eight times as large as its
-- contents, is not reported: some tables here are filled by half, so they need twice the space, and this allows four
-- times that.
-- Index: those of the catalogs. Race: none, it only reads.
WITH block AS (
    SELECT pg_catalog.current_setting('block_size')::int8 AS size
), relation AS (
    SELECT c.oid, c.relname::text AS name, c.relkind, c.relpages::int8 * b.size AS bytes, c.reltuples::float8 AS n, c.reltoastrelid
      FROM block AS b
     CROSS JOIN pg_catalog.pg_class AS c
      JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
     WHERE n.nspname = 'lockapi' AND c.relkind IN ('r', 'i')
), width AS MATERIALIZED (
    SELECT s.tablename::text AS name, s.attname, s.avg_width * (1 - s.null_frac) AS bytes
      FROM pg_catalog.pg_stats AS s
     WHERE s.schemaname = 'lockapi'
), need AS (
    SELECT 'table_bloat' AS fault, r.name, 'it' AS what, r.bytes, r.n,
           r.n * (32 + coalesce((SELECT pg_catalog.sum(w.bytes) FROM width AS w WHERE w.name = r.name), 2000)) AS least
      FROM relation AS r
     WHERE r.relkind = 'r'
     UNION ALL
    SELECT 'table_bloat', r.name, 'its TOAST table', t.relpages::int8 * b.size, t.reltuples, t.reltuples * 2048
      FROM block AS b
     CROSS JOIN relation AS r
      JOIN pg_catalog.pg_class AS t ON t.oid = r.reltoastrelid
     UNION ALL
    SELECT 'index_bloat', r.name, 'it', r.bytes, r.n,
           r.n * (24 + (SELECT pg_catalog.sum(coalesce(w.bytes, 100))
                          FROM pg_catalog.pg_index AS i
                         CROSS JOIN LATERAL pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
                          LEFT JOIN pg_catalog.pg_attribute AS a
                            ON a.attrelid = CASE WHEN k.attnum = 0 THEN r.oid ELSE i.indrelid END
                               AND a.attnum = CASE WHEN k.attnum = 0 THEN k.place ELSE k.attnum END
                          LEFT JOIN relation AS t ON t.oid = a.attrelid
                          LEFT JOIN width AS w ON w.name = t.name AND w.attname = a.attname
                         WHERE i.indexrelid = r.oid))
      FROM relation AS r
     WHERE r.relkind = 'i'
)
SELECT n.fault, n.name AS subject,
       n.what || ' takes ' || pg_catalog.pg_size_pretty(n.bytes) || ', and its ' || n.n::int8 || ' rows need about '
       || pg_catalog.pg_size_pretty(n.least::int8) AS detail
  FROM need AS n
 WHERE n.n >= 0 AND n.bytes >= 64 * 1048576 AND n.bytes > 8 * n.least
 ORDER BY 1, 2
