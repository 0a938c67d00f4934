-- Returns what a role that is to run migrations lacks.
--
-- Promises: a row for each object of the schema lockapi that the role does not own, itself or through a role
-- of which it is a member, and one if it may not create schemas; it may run before the schema exists.
-- Index: those of the catalogs. Race: none, it only reads.
SELECT o.object, 'OWNER' AS privilege, false AS excess
  FROM (SELECT n.nspname::pg_catalog.text AS object, n.nspowner AS owner
          FROM pg_catalog.pg_namespace AS n
         WHERE n.nspname OPERATOR(pg_catalog.=) 'lockapi'
         UNION ALL
        SELECT c.relname::pg_catalog.text, c.relowner
          FROM pg_catalog.pg_class AS c
          JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
         WHERE n.nspname OPERATOR(pg_catalog.=) 'lockapi'
           AND c.relkind OPERATOR(pg_catalog.=) ANY (ARRAY['r', 'v', 'S']::pg_catalog."char"[])
         UNION ALL
        SELECT p.oid::pg_catalog.regprocedure::pg_catalog.text, p.proowner
          FROM pg_catalog.pg_proc AS p
          JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
         WHERE n.nspname OPERATOR(pg_catalog.=) 'lockapi') AS o
 -- As migrations act: from version 16 on a role may be granted to be inherited alone.
 WHERE NOT pg_catalog.pg_has_role({role}, o.owner,
                                  CASE WHEN pg_catalog.current_setting('server_version_num')::pg_catalog.int4 OPERATOR(pg_catalog.>=) 160000
                                       THEN 'SET' ELSE 'MEMBER' END)
 UNION ALL
SELECT pg_catalog.current_database()::pg_catalog.text, 'CREATE', false
 WHERE NOT pg_catalog.has_database_privilege({role}, pg_catalog.current_database(), 'CREATE')
 ORDER BY 1, 2
