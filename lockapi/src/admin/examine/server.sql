-- Reads what is wrong with the settings and the room of the server.
--
-- Promises: a row for each fault, with its name, what it is about and what was found; it reads nothing of the schema
-- lockapi, and runs on a standby too.
-- Index: none, settings and statistics. Race: none, it only reads.
WITH room AS (
    -- As the server computes it; prepared transactions count as connections.
    SELECT pg_catalog.current_setting('max_locks_per_transaction')::int8
           * (pg_catalog.current_setting('max_connections')::int8 + pg_catalog.current_setting('max_prepared_transactions')::int8) AS locks,
           pg_catalog.current_setting('max_connections')::int8 AS connections
), used AS (
    -- Weak relation locks of a session take no room of the common table unless they are many.
    SELECT (SELECT pg_catalog.count(*) FROM pg_catalog.pg_locks AS l WHERE NOT l.fastpath) AS locks,
           (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity AS a WHERE a.backend_type = 'client backend') AS connections
)
SELECT 'standby' AS fault, 'the server' AS subject, 'it is in recovery' AS detail
 WHERE pg_catalog.pg_is_in_recovery()
 UNION ALL
SELECT 'not_durable', s.name, s.name || ' is off'
  FROM pg_catalog.pg_settings AS s
 WHERE s.name IN ('fsync', 'full_page_writes') AND s.setting = 'off'
 UNION ALL
SELECT 'late_commit', 'synchronous_commit', 'it is ' || pg_catalog.current_setting('synchronous_commit') || ' for this role'
 WHERE pg_catalog.current_setting('synchronous_commit') = 'off'
 UNION ALL
SELECT 'own_read_only',
       CASE WHEN s.setrole = 0 AND s.setdatabase = 0 THEN 'ROLE ALL'
            WHEN s.setrole = 0 THEN 'DATABASE ' || pg_catalog.quote_ident(d.datname::text)
            ELSE 'ROLE ' || pg_catalog.quote_ident(r.rolname::text)
                 || coalesce(' IN DATABASE ' || pg_catalog.quote_ident(d.datname::text), '') END, o.setting || ' is set for it'
  FROM pg_catalog.pg_db_role_setting AS s
 CROSS JOIN LATERAL pg_catalog.unnest(s.setconfig) AS o (setting)
  LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = s.setrole
  LEFT JOIN pg_catalog.pg_database AS d ON d.oid = s.setdatabase
 WHERE o.setting LIKE 'default_transaction_read_only=%'
   AND (s.setdatabase = 0 OR d.datname = pg_catalog.current_database())
   AND (s.setrole = 0
        OR EXISTS (SELECT FROM pg_catalog.pg_namespace AS n
                    WHERE n.nspname = 'lockapi' AND pg_catalog.has_schema_privilege(s.setrole, n.oid, 'USAGE')))
 UNION ALL
SELECT 'no_autovacuum', s.name, s.name || ' is off'
  FROM pg_catalog.pg_settings AS s
 WHERE s.name IN ('autovacuum', 'track_counts') AND s.setting = 'off'
 UNION ALL
SELECT 'connections', 'max_connections', u.connections || ' of ' || r.connections || ' are taken'
  FROM room AS r CROSS JOIN used AS u
 WHERE u.connections * 10 > r.connections * 8
 UNION ALL
SELECT 'lock_table', 'max_locks_per_transaction', u.locks || ' locks, with room for about ' || r.locks
  FROM room AS r CROSS JOIN used AS u
 WHERE u.locks * 10 > r.locks * 7
 UNION ALL
SELECT 'notifications', 'the notification queue', (n.share * 100)::int8 || ' % are taken'
  FROM (SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN 0 ELSE pg_catalog.pg_notification_queue_usage() END AS share) AS n
 WHERE n.share > 0.5
 UNION ALL
SELECT 'wraparound', d.datname::text, 'its oldest transaction is ' || pg_catalog.age(d.datfrozenxid) || ' transactions old'
  FROM pg_catalog.pg_database AS d
 WHERE d.datallowconn AND pg_catalog.age(d.datfrozenxid) > 1500000000
