-- Acts as the owner of the schema for the rest of the transaction, where the role may and everything in the schema is
-- the owner's: what is created then belongs to the owner as well, and not to the member who happened to migrate.
--
-- Promises: whoever migrates next as another member finds tables and functions of the owner alone. Where there is no
-- schema, or something in it is another's, the role stays what it is. Returns the role that it acts as, or ''.
-- Index: those of the catalogs. Race: migrations are applied one at a time, and what there is is looked at under
-- the lock.
SELECT coalesce(pg_catalog.max(pg_catalog.set_config('role', pg_catalog.pg_get_userbyid(n.nspowner)::pg_catalog.text, true)), '') AS role
  FROM pg_catalog.pg_namespace AS n
 WHERE n.nspname OPERATOR(pg_catalog.=) 'lockapi'
   AND pg_catalog.pg_get_userbyid(n.nspowner) OPERATOR(pg_catalog.<>) current_user
   AND pg_catalog.pg_has_role(n.nspowner, CASE WHEN pg_catalog.current_setting('server_version_num')::pg_catalog.int4 OPERATOR(pg_catalog.>=) 160000
                                               THEN 'SET' ELSE 'MEMBER' END)
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_class AS c
                    WHERE c.relnamespace OPERATOR(pg_catalog.=) n.oid AND c.relowner OPERATOR(pg_catalog.<>) n.nspowner)
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_proc AS p
                    WHERE p.pronamespace OPERATOR(pg_catalog.=) n.oid AND p.proowner OPERATOR(pg_catalog.<>) n.nspowner)
