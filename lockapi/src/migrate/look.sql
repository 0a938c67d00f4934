-- Looks at who owns the schema and what is in it, before anything in it is read.
--
-- Promises: reads nothing but catalogs, so that nothing of others is run. "found" tells whether the table
-- of applied migrations exists, "plain" that to read it runs nothing else, "may" that the role could change
-- the schema. "strange" has what is there and is owned by a role that this one neither is nor is a member
-- of, and that is no superuser; and functions of such roles that tables here would call. That a superuser
-- counts as a member of every role does not help: it is whom others would want to run something.
-- Index: those of the catalogs.
-- Race: asked again under the lock, and once more when the scripts have run. It reads the catalogs as
-- tables: to_regclass() answers from a cache that a transaction which only waited for an advisory lock
-- does not bring up to date.
WITH RECURSIVE member AS (
    SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname OPERATOR(pg_catalog.=) current_user
     UNION
    SELECT a.roleid
      FROM member AS m
      JOIN pg_catalog.pg_auth_members AS a ON a.member OPERATOR(pg_catalog.=) m.oid
), trusted AS (
    SELECT m.oid FROM member AS m
     UNION
    SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolsuper
), home AS (
    SELECT n.oid, n.nspowner FROM pg_catalog.pg_namespace AS n WHERE n.nspname OPERATOR(pg_catalog.=) 'lockapi'
), relation AS (
    SELECT c.* FROM home AS h JOIN pg_catalog.pg_class AS c ON c.relnamespace OPERATOR(pg_catalog.=) h.oid
), owned (what, owner) AS (
    SELECT 'the schema lockapi', h.nspowner FROM home AS h
     UNION ALL
    SELECT pg_catalog.format('lockapi.%I', c.relname), c.relowner FROM relation AS c
     UNION ALL
    SELECT pg_catalog.format('the function lockapi.%I', p.proname), p.proowner
      FROM home AS h JOIN pg_catalog.pg_proc AS p ON p.pronamespace OPERATOR(pg_catalog.=) h.oid
     UNION ALL
    SELECT pg_catalog.format('the type lockapi.%I', t.typname), t.typowner
      FROM home AS h JOIN pg_catalog.pg_type AS t ON t.typnamespace OPERATOR(pg_catalog.=) h.oid
     UNION ALL
    SELECT pg_catalog.format('the operator lockapi.%s', o.oprname), o.oprowner
      FROM home AS h JOIN pg_catalog.pg_operator AS o ON o.oprnamespace OPERATOR(pg_catalog.=) h.oid
     UNION ALL
    SELECT pg_catalog.format('the function of the trigger %I on lockapi.%I', t.tgname, c.relname), p.proowner
      FROM relation AS c
      JOIN pg_catalog.pg_trigger AS t ON t.tgrelid OPERATOR(pg_catalog.=) c.oid AND NOT t.tgisinternal
      JOIN pg_catalog.pg_proc AS p ON p.oid OPERATOR(pg_catalog.=) t.tgfoid
     UNION ALL
    -- Of defaults, rules (views are rules) and policies.
    SELECT pg_catalog.format('the function %I.%I, which something in lockapi calls', n.nspname, p.proname), p.proowner
      FROM pg_catalog.pg_depend AS d
      JOIN pg_catalog.pg_proc AS p ON p.oid OPERATOR(pg_catalog.=) d.refobjid
      JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
     WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
       AND ((d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_attrdef'::pg_catalog.regclass
             AND d.objid OPERATOR(pg_catalog.=) ANY (ARRAY(
                     SELECT f.oid FROM relation AS c
                       JOIN pg_catalog.pg_attrdef AS f ON f.adrelid OPERATOR(pg_catalog.=) c.oid)))
         OR (d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_rewrite'::pg_catalog.regclass
             AND d.objid OPERATOR(pg_catalog.=) ANY (ARRAY(
                     SELECT w.oid FROM relation AS c
                       JOIN pg_catalog.pg_rewrite AS w ON w.ev_class OPERATOR(pg_catalog.=) c.oid)))
         OR (d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_policy'::pg_catalog.regclass
             AND d.objid OPERATOR(pg_catalog.=) ANY (ARRAY(
                     SELECT y.oid FROM relation AS c
                       JOIN pg_catalog.pg_policy AS y ON y.polrelid OPERATOR(pg_catalog.=) c.oid))))
)
SELECT EXISTS (SELECT FROM relation AS c WHERE c.relname OPERATOR(pg_catalog.=) 'migration') AS found,
       NOT EXISTS (SELECT FROM relation AS c
                    WHERE c.relname OPERATOR(pg_catalog.=) 'migration'
                      AND (c.relkind OPERATOR(pg_catalog.<>) 'r' OR c.relrowsecurity
                           OR EXISTS (SELECT FROM pg_catalog.pg_rewrite AS w WHERE w.ev_class OPERATOR(pg_catalog.=) c.oid))) AS plain,
       coalesce((SELECT pg_catalog.has_schema_privilege(h.oid, 'CREATE') FROM home AS h), true) AS may,
       ARRAY(SELECT DISTINCT pg_catalog.format('%s is owned by %I', o.what, pg_catalog.pg_get_userbyid(o.owner))
               FROM owned AS o
              WHERE NOT EXISTS (SELECT FROM trusted AS t WHERE t.oid OPERATOR(pg_catalog.=) o.owner)
              ORDER BY 1
              LIMIT 3) AS strange
