-- Makes a connection independent of its role's settings, and tells whether the server is a standby.
--
-- Promises: afterwards statements run as READ COMMITTED, unhurried and durable, whatever the
-- defaults of the role and the database are; a stricter synchronous_commit stays. With $1 the
-- settings last for the transaction, otherwise for the session. $2 is the time that a statement waits
-- for a lock.
-- A transaction behind a proxy ends when its client falls silent, which would otherwise keep rows
-- of leases locked beyond their time to live.
-- Plans are made once, often while tables are small, and have to do when they have grown: tables are
-- read through their indexes, which also keeps the order in which a batch locks its rows.
-- Index: none; settings that this version of the server does not have are left out by the join.
-- Race: none.
WITH wanted (name, value) AS (
    VALUES ('search_path', 'pg_catalog'),
           ('statement_timeout', '0'),
           ('lock_timeout', $2::text),
           ('transaction_timeout', '0'),
           ('idle_in_transaction_session_timeout', CASE WHEN $1::bool THEN '10s' ELSE '0' END),
           ('idle_session_timeout', '0'),
           ('default_transaction_isolation', 'read committed'),
           ('default_transaction_read_only', 'off'),
           ('default_transaction_deferrable', 'off'),
           ('client_min_messages', 'error'),
           ('jit', 'off'),
           ('plan_cache_mode', 'force_generic_plan'),
           ('enable_seqscan', 'off'),
           ('enable_bitmapscan', 'off'),
           ('random_page_cost', '1'),
           ('tcp_keepalives_idle', '5'),
           ('tcp_keepalives_interval', '2'),
           ('tcp_keepalives_count', '3'),
           ('synchronous_commit',
            CASE pg_catalog.current_setting('synchronous_commit')
                WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END)
), done AS MATERIALIZED (
    SELECT pg_catalog.set_config(w.name, w.value, $1::bool) AS value
      FROM wanted AS w
      JOIN pg_catalog.pg_settings AS s ON s.name = w.name
)
SELECT pg_catalog.pg_is_in_recovery() AS standby, pg_catalog.count(d.value) AS settings
  FROM done AS d
