-- Makes a connection independent of its role's settings, and returns whether the server is a standby, the ID
-- and the start time, in microseconds, of the process that serves the connection, and whether the database
-- has epochs and the role may enter one: a role that only reads may not. A role that draws tokens has to:
-- "unprivileged" is whether the role may draw tokens but not enter an epoch. "read_only" is whether an
-- administrator made the server read-only as a whole, as with a primary that was replaced.
--
-- Promises: afterwards statements run as READ COMMITTED and durable, whatever the defaults of the role and
-- the database are; a stricter synchronous_commit is kept. With $1 the settings last for the transaction,
-- otherwise for the session. $2 is lock_timeout and $3 is statement_timeout, a little less than the client
-- waits, so that no statement runs without a waiting client. The session has the name of its program, or $4,
-- of at most $6 bytes, followed by $5.
-- Behind a proxy, a transaction ends when its client stops sending; otherwise it would keep rows of leases
-- locked beyond their time to live. A client that vanished is detected within 11 seconds, by keepalives, or
-- by tcp_user_timeout while an answer is being sent, because no keepalives are sent then.
-- Plans are made once, often while tables are small, and have to be good enough when the tables have grown.
-- So tables are read through their indexes, which also keeps the order in which a batch locks its rows, and a
-- batch is joined by hash: the planner assumes ten elements for every array, and a nested loop would read two
-- thousand of them for each of two thousand rows.
-- Index: those of the catalogs; the join removes settings that this version of the server does not have.
-- Race: none. Operators are schema-qualified, because search_path is not set yet.
WITH named (name) AS (
    SELECT CASE WHEN a.name OPERATOR(pg_catalog.~~) ('%' OPERATOR(pg_catalog.||) $5::pg_catalog.text) THEN a.name
                WHEN a.name OPERATOR(pg_catalog.=) ''
                THEN pg_catalog.left($4::pg_catalog.text, $6::pg_catalog.int8::pg_catalog.int4) OPERATOR(pg_catalog.||) $5::pg_catalog.text
                ELSE pg_catalog.left(a.name, $6::pg_catalog.int8::pg_catalog.int4) OPERATOR(pg_catalog.||) $5::pg_catalog.text END
      FROM (SELECT pg_catalog.current_setting('application_name')) AS a (name)
), wanted (name, value) AS (
    VALUES ('search_path', 'pg_catalog, pg_temp'),
           ('application_name', (SELECT n.name FROM named AS n)),
           ('statement_timeout', $3::pg_catalog.text),
           ('lock_timeout', $2::pg_catalog.text),
           ('transaction_timeout', '0'),
           ('idle_in_transaction_session_timeout', CASE WHEN $1::pg_catalog.bool THEN '10s' ELSE '0' END),
           ('idle_session_timeout', '0'),
           ('default_transaction_isolation', 'read committed'),
           ('default_transaction_read_only', 'off'),
           ('default_transaction_deferrable', 'off'),
           ('client_min_messages', 'error'),
           ('jit', 'off'),
           ('plan_cache_mode', 'force_generic_plan'),
           ('enable_seqscan', 'off'),
           ('enable_bitmapscan', 'off'),
           ('enable_nestloop', 'off'),
           ('enable_mergejoin', 'off'),
           ('random_page_cost', '1'),
           ('tcp_keepalives_idle', '5'),
           ('tcp_keepalives_interval', '2'),
           ('tcp_keepalives_count', '3'),
           ('tcp_user_timeout', '11000'),
           ('synchronous_commit',
            CASE WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'remote_apply'
                 THEN 'remote_apply' ELSE 'on' END)
), done AS MATERIALIZED (
    SELECT pg_catalog.set_config(w.name, w.value, $1::pg_catalog.bool) AS value,
           s.name OPERATOR(pg_catalog.=) 'default_transaction_read_only' AND s.setting OPERATOR(pg_catalog.=) 'on'
               AND s.source OPERATOR(pg_catalog.=) ANY (ARRAY['configuration file', 'command line']) AS read_only
      FROM wanted AS w
      JOIN pg_catalog.pg_settings AS s ON s.name OPERATOR(pg_catalog.=) w.name
)
SELECT pg_catalog.pg_is_in_recovery() AS standby, pg_catalog.count(d.value) AS settings,
       pg_catalog.pg_backend_pid()::pg_catalog.int8 AS pid,
       (SELECT (extract(epoch FROM a.backend_start) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8
          FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()) AS a) AS started,
       EXISTS (SELECT FROM pg_catalog.pg_namespace AS n
                 JOIN pg_catalog.pg_proc AS p ON p.pronamespace OPERATOR(pg_catalog.=) n.oid
                WHERE n.nspname OPERATOR(pg_catalog.=) 'lockapi'
                  AND p.proname OPERATOR(pg_catalog.=) 'enter_epoch'
                  AND pg_catalog.has_function_privilege(p.oid, 'EXECUTE')) AS epochs,
       EXISTS (SELECT FROM pg_catalog.pg_namespace AS n
                 JOIN pg_catalog.pg_proc AS p ON p.pronamespace OPERATOR(pg_catalog.=) n.oid
                 JOIN pg_catalog.pg_class AS c ON c.relnamespace OPERATOR(pg_catalog.=) n.oid
                WHERE n.nspname OPERATOR(pg_catalog.=) 'lockapi'
                  AND p.proname OPERATOR(pg_catalog.=) 'enter_epoch'
                  AND NOT pg_catalog.has_function_privilege(p.oid, 'EXECUTE')
                  AND (c.relname OPERATOR(pg_catalog.=) 'fence_seq' OR c.relname OPERATOR(pg_catalog.=) 'delivery_seq')
                  AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')
                  AND CASE WHEN c.relkind OPERATOR(pg_catalog.=) 'S'
                           THEN pg_catalog.has_sequence_privilege(c.oid, 'USAGE, UPDATE') ELSE false END) AS unprivileged,
       pg_catalog.bool_or(d.read_only) AS read_only
  FROM done AS d
