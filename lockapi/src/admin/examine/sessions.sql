-- Reads what keeps old rows from being vacuumed: sessions, prepared transactions and replication slots. $1 is from
-- which age on, in microseconds.
--
-- Promises: a row for each of them, with the name of the fault, what it is about and what was found; it reads nothing of
-- the schema lockapi. Statements of others are not shown: they may hold data.
-- Index: none, statistics. Race: none, it only reads.
SELECT 'old_snapshot' AS fault, 'session ' || a.pid AS subject,
       coalesce(a.usename::text, 'a role that was dropped') || ' (' || coalesce(nullif(a.application_name, ''), 'no application name')
       || '), ' || coalesce(a.state, 'in a state that this role may not see') || ', in a transaction for '
       || pg_catalog.date_trunc('second', pg_catalog.clock_timestamp() - a.xact_start) AS detail
  FROM pg_catalog.pg_stat_activity AS a
 WHERE a.pid <> pg_catalog.pg_backend_pid() AND a.datname = pg_catalog.current_database()
   AND a.backend_type = 'client backend'
   AND a.xact_start < pg_catalog.clock_timestamp() - $1::int8 * interval '1 microsecond'
 UNION ALL
SELECT 'unreadable', 'pg_stat_activity', 'of sessions of others this role sees neither their transactions nor their kind: it needs pg_read_all_stats'
 WHERE EXISTS (SELECT FROM pg_catalog.pg_stat_activity AS a WHERE a.backend_type IS NULL)
 UNION ALL
SELECT 'prepared_transaction', p.gid, 'of ' || p.owner || ', prepared '
       || pg_catalog.date_trunc('second', pg_catalog.clock_timestamp() - p.prepared) || ' ago'
  FROM pg_catalog.pg_prepared_xacts AS p
 WHERE p.database = pg_catalog.current_database()
   AND p.prepared < pg_catalog.clock_timestamp() - $1::int8 * interval '1 microsecond'
 UNION ALL
SELECT 'replication_slot', s.slot_name::text,
       'nobody uses it'
       || coalesce(', and ' || pg_catalog.pg_size_pretty(pg_catalog.pg_wal_lsn_diff(
              CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_receive_lsn()
                   ELSE pg_catalog.pg_current_wal_lsn() END, s.restart_lsn)) || ' of log are kept for it', '')
  FROM pg_catalog.pg_replication_slots AS s
 WHERE NOT s.active AND (s.restart_lsn IS NOT NULL OR s.xmin IS NOT NULL OR s.catalog_xmin IS NOT NULL)
