-- Reads who owns the schema and what it contains, before anything in it is read.
--
-- Promises: reads only catalogs, so that no code of other roles is executed. "found" is whether the table of
-- applied migrations exists, "is_table" whether reading it executes nothing else, "can_change" whether the role could
-- change the schema. "untrusted" lists objects that exist there and are owned by a role that is neither this
-- one, nor one that it is a member of, nor a superuser; and functions of such roles that tables here would
-- call. "act_as" is the owner of the schema, where this role is another that is a member of it and may act as
-- it; otherwise it is empty. What counts are memberships that were granted, and that of the owner of the
-- database in pg_database_owner. A superuser counts as a member of every role, but this membership is not
-- used: a superuser is the role with which others would want to have code executed.
-- Index: those of the catalogs.
-- Race: read again under the lock, and once more after the scripts have run. It reads the catalogs as tables:
-- to_regclass() uses a cache that is not refreshed by a transaction which only waited for an advisory lock.
WITH RECURSIVE member AS (
    SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname OPERATOR(pg_catalog.=) current_user
     UNION
    SELECT a.roleid
      FROM member AS m
      JOIN (SELECT g.member, g.roleid
              FROM pg_catalog.pg_auth_members AS g
             -- From version 16 on a role may be granted to be administered alone.
             WHERE coalesce((pg_catalog.to_jsonb(g) OPERATOR(pg_catalog.->>) 'set_option')::pg_catalog.bool, true)
             UNION ALL
            SELECT d.datdba, r.oid
              FROM pg_catalog.pg_database AS d
              JOIN pg_catalog.pg_roles AS r ON r.rolname OPERATOR(pg_catalog.=) 'pg_database_owner'
             WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
           ) AS a ON a.member OPERATOR(pg_catalog.=) m.oid
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
                           OR EXISTS (SELECT FROM pg_catalog.pg_rewrite AS w WHERE w.ev_class OPERATOR(pg_catalog.=) c.oid))) AS is_table,
       coalesce((SELECT pg_catalog.has_schema_privilege(h.oid, 'CREATE') FROM home AS h), true) AS can_change,
       ARRAY(SELECT DISTINCT pg_catalog.format('%s is owned by %I', o.what, pg_catalog.pg_get_userbyid(o.owner))
               FROM owned AS o
              WHERE NOT EXISTS (SELECT FROM trusted AS t WHERE t.oid OPERATOR(pg_catalog.=) o.owner)
              ORDER BY 1
              LIMIT 3) AS untrusted,
       coalesce((SELECT pg_catalog.pg_get_userbyid(h.nspowner)::pg_catalog.text
                   FROM home AS h
                   JOIN member AS m ON m.oid OPERATOR(pg_catalog.=) h.nspowner
                  WHERE pg_catalog.pg_get_userbyid(h.nspowner) OPERATOR(pg_catalog.<>) current_user
                    AND pg_catalog.pg_has_role(h.nspowner,
                                               CASE WHEN pg_catalog.current_setting('server_version_num')::pg_catalog.int4 OPERATOR(pg_catalog.>=) 160000
                                                    THEN 'SET' ELSE 'MEMBER' END)), '') AS act_as
