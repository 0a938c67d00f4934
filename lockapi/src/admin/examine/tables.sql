-- Reads what is wrong with the tables of the schema lockapi, from the catalogs.
--
-- Promises: a row for each fault, with its name, the table and what was found; none where there is no schema. The
-- tables of sessions, of long holds and waits, and of progress are unlogged on purpose, because a crash makes their
-- rows useless. So is the one whose row a crash has to remove.
-- Index: those of the catalogs. Race: none, it only reads.
WITH relation AS (
    SELECT c.oid, c.relname::text AS name, c.relpersistence, c.relrowsecurity, c.reloptions
      FROM pg_catalog.pg_class AS c
      JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
     WHERE n.nspname = 'lockapi' AND c.relkind = 'r'
)
SELECT 'unlogged' AS fault, r.name AS subject, 'the table is unlogged' AS detail
  FROM relation AS r
 WHERE r.relpersistence <> 'p' AND r.name NOT IN ('job_progress', 'lock_note', 'lock_session', 'since_crash')
 UNION ALL
SELECT 'logged', r.name, 'the table is logged'
  FROM relation AS r
 WHERE r.relpersistence = 'p' AND r.name = 'since_crash'
 UNION ALL
SELECT 'trigger', r.name, 'the trigger ' || t.tgname
  FROM relation AS r
  JOIN pg_catalog.pg_trigger AS t ON t.tgrelid = r.oid AND NOT t.tgisinternal
 UNION ALL
SELECT 'rule', r.name, 'the rule ' || w.rulename
  FROM relation AS r
  JOIN pg_catalog.pg_rewrite AS w ON w.ev_class = r.oid
 UNION ALL
SELECT 'row_security', r.name, 'row security is on'
  FROM relation AS r
 WHERE r.relrowsecurity
 UNION ALL
SELECT 'table_autovacuum', r.name, 'autovacuum is off for the table'
  FROM relation AS r
 WHERE EXISTS (SELECT FROM pg_catalog.pg_options_to_table(r.reloptions) AS o
                WHERE o.option_name = 'autovacuum_enabled' AND o.option_value IN ('false', 'off', 'no', '0'))
 UNION ALL
SELECT 'dead_rows', r.name, s.n_dead_tup || ' dead rows beside ' || s.n_live_tup || ' living ones; vacuumed '
       || coalesce(pg_catalog.date_trunc('second', pg_catalog.clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum)) || ' ago', 'never')
  FROM relation AS r
  JOIN pg_catalog.pg_stat_all_tables AS s ON s.relid = r.oid
 WHERE s.n_dead_tup > 50000 AND s.n_dead_tup > s.n_live_tup
