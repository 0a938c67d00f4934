-- Whoever may change the groups of a queue may change their rates, and whoever may push may push with headers.
--
-- Version 22 let lockapi.admit(), which workers call, use a table that it had made: a worker that had its own role was refused from
-- the migration until somebody granted it the table. A migration that lets something of an earlier version use a table that
-- is new grants that table to whoever has the rights for the rest. The same holds for the function that lockapi.push() has called
-- since version 14, where functions are not for everybody.

SET LOCAL search_path = pg_catalog, pg_temp;

DO $$
    DECLARE
        privileges text;
        grantee text;
    BEGIN
        FOR privileges, grantee IN
            SELECT o.privileges, CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
              FROM (SELECT c.relowner AS owner, c.relacl AS acl, 'INSERT' AS has,
                           'SELECT, INSERT, UPDATE, DELETE ON lockapi.group_rate' AS privileges
                      FROM pg_class AS c
                     WHERE c.oid = 'lockapi.queue_groups'::regclass
                     UNION ALL
                    SELECT p.proowner, p.proacl, 'EXECUTE', 'EXECUTE ON FUNCTION lockapi.push_with_headers'
                      FROM pg_proc AS p
                     WHERE p.pronamespace = 'lockapi'::regnamespace AND p.proname = 'push') AS o
             CROSS JOIN LATERAL aclexplode(o.acl) AS a
             WHERE a.privilege_type = o.has AND a.grantee <> o.owner
             ORDER BY 1, 2
        LOOP
            EXECUTE format('GRANT %s TO %s', privileges, grantee);
        END LOOP;
    END
$$;
