-- Whoever may change the groups of a queue may change their rates.
--
-- Version 22 let lockapi.admit(), which workers call, use a table that it had made: a worker that had its own role was refused from
-- the migration until somebody granted it the table. A migration that lets something of an earlier version use a table that
-- is new grants that table to whoever has the rights for the rest.

SET LOCAL search_path = pg_catalog, pg_temp;

DO $$
    DECLARE
        grantee text;
    BEGIN
        FOR grantee IN
            SELECT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
              FROM pg_class AS c
             CROSS JOIN LATERAL aclexplode(c.relacl) AS a
             WHERE c.oid = 'lockapi.queue_groups'::regclass AND a.privilege_type = 'INSERT' AND a.grantee <> c.relowner
             ORDER BY 1
        LOOP
            EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON lockapi.group_rate TO %s', grantee);
        END LOOP;
    END
$$;
