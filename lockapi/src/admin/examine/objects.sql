-- Reads what there is in the schema lockapi.
--
-- Promises: a row for each table, column, index, constraint, sequence, view and function, with what it is made of in a
-- form that is the same on all versions of the server; of views only that they are there. An index that is not valid
-- says so.
-- Index: those of the catalogs. Race: none, it only reads.
WITH home AS (
    SELECT n.oid FROM pg_catalog.pg_namespace AS n WHERE n.nspname = 'lockapi'
), relation AS (
    SELECT c.oid, c.relname::text AS name, c.relkind FROM home AS h JOIN pg_catalog.pg_class AS c ON c.relnamespace = h.oid
)
SELECT CASE r.relkind WHEN 'r' THEN 'table' WHEN 'v' THEN 'view' ELSE 'sequence' END AS kind, r.name, '' AS made_of
  FROM relation AS r
 WHERE r.relkind = ANY (ARRAY['r', 'v', 'S']::"char"[])
 UNION ALL
SELECT 'column', r.name || '.' || a.attname,
       pg_catalog.format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END
  FROM relation AS r
  JOIN pg_catalog.pg_attribute AS a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE r.relkind = 'r'
 UNION ALL
SELECT 'index', r.name,
       pg_catalog.pg_get_indexdef(r.oid) || CASE WHEN i.indisvalid AND i.indisready THEN '' ELSE ' (not valid)' END
  FROM relation AS r
  JOIN pg_catalog.pg_index AS i ON i.indexrelid = r.oid
 WHERE r.relkind = 'i'
 UNION ALL
SELECT 'function', p.proname || '(' || pg_catalog.pg_get_function_identity_arguments(p.oid) || ')', pg_catalog.md5(p.prosrc)
  FROM home AS h
  JOIN pg_catalog.pg_proc AS p ON p.pronamespace = h.oid
 ORDER BY 1, 2
