-- Compares the privileges of a role in the schema lockapi with those that it should have.
--
-- Promises: a row for each privilege that it has but should not have, or should have but does not have; those
-- on columns only where it does not have them on the whole table.
-- Index: those of the catalogs. Race: none, it only reads.
WITH due (object, privilege) AS (
    VALUES {due}
), relation AS (
    SELECT c.oid, c.relname::pg_catalog.text AS name, c.relkind
      FROM pg_catalog.pg_class AS c
      JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
     WHERE n.nspname OPERATOR(pg_catalog.=) 'lockapi'
       AND c.relkind OPERATOR(pg_catalog.=) ANY (ARRAY['r', 'v', 'S']::pg_catalog."char"[])
), had (object, privilege) AS (
    SELECT 'lockapi', p.p
      FROM (VALUES ('USAGE'), ('CREATE')) AS p (p)
     WHERE pg_catalog.has_schema_privilege({role}, 'lockapi', p.p)
     UNION ALL
    SELECT r.name, p.p
      FROM relation AS r
     CROSS JOIN (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('DELETE'), ('TRUNCATE'), ('REFERENCES'), ('TRIGGER')) AS p (p)
     WHERE r.relkind OPERATOR(pg_catalog.<>) 'S' AND pg_catalog.has_table_privilege({role}, r.oid, p.p)
     UNION ALL
    SELECT r.name, p.p
      FROM relation AS r
     CROSS JOIN (VALUES ('SELECT'), ('USAGE'), ('UPDATE')) AS p (p)
     WHERE r.relkind OPERATOR(pg_catalog.=) 'S' AND pg_catalog.has_sequence_privilege({role}, r.oid, p.p)
     UNION ALL
    SELECT pg_catalog.concat(r.name, '.', a.attname), p.p
      FROM relation AS r
      JOIN pg_catalog.pg_attribute AS a ON a.attrelid OPERATOR(pg_catalog.=) r.oid
       AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped
     CROSS JOIN (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('REFERENCES')) AS p (p)
     WHERE r.relkind OPERATOR(pg_catalog.<>) 'S' AND NOT pg_catalog.has_table_privilege({role}, r.oid, p.p)
       AND pg_catalog.has_column_privilege({role}, r.oid, a.attnum, p.p)
)
SELECT coalesce(h.object, d.object) AS object, coalesce(h.privilege, d.privilege) AS privilege,
       d.object IS NULL AS excess
  FROM had AS h
  FULL JOIN due AS d
    ON d.object OPERATOR(pg_catalog.=) h.object AND d.privilege OPERATOR(pg_catalog.=) h.privilege
 WHERE h.object IS NULL OR d.object IS NULL
 UNION ALL
-- What a function does that runs with the rights of its owner is in excess.
SELECT pg_catalog.concat(p.proname, '()'), 'EXECUTE', NOT ({functions})
  FROM pg_catalog.pg_proc AS p
  JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
 WHERE n.nspname OPERATOR(pg_catalog.=) 'lockapi'
   AND pg_catalog.has_function_privilege({role}, p.oid, 'EXECUTE') OPERATOR(pg_catalog.<>) ({functions})
   AND (({functions}) OR p.prosecdef)
 ORDER BY 1, 2
