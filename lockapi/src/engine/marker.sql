-- Sets a marker in the session ($1), reads the marker that is there ($1 empty), or removes it ($1 a hyphen).
-- Tries the advisory lock $3 for the open transaction or for the session, or releases that of the session
-- ($2), and returns which process answers and what the server calls itself.
--
-- Promises: on a connection of its own the marker is read back there and nowhere else, by the same process;
-- behind a transaction-pooling proxy it appears elsewhere, or is gone. While one session has the lock, no
-- other session obtains it, unless the locks of the server do not exclude.
-- Index: none. Race: none, the server decides.
SELECT CASE WHEN $1::pg_catalog.text OPERATOR(pg_catalog.=) ''
            THEN coalesce(pg_catalog.current_setting('lockapi.marker', true), '')
            WHEN $1::pg_catalog.text OPERATOR(pg_catalog.=) '-'
            THEN pg_catalog.set_config('lockapi.marker', '', false)
            ELSE pg_catalog.set_config('lockapi.marker', $1::pg_catalog.text, false) END AS marker,
       CASE WHEN $2::pg_catalog.text OPERATOR(pg_catalog.=) 'transaction'
            THEN pg_catalog.pg_try_advisory_xact_lock($3::pg_catalog.int8)
            WHEN $2::pg_catalog.text OPERATOR(pg_catalog.=) 'session'
            THEN pg_catalog.pg_try_advisory_lock($3::pg_catalog.int8)
            WHEN $2::pg_catalog.text OPERATOR(pg_catalog.=) 'give back'
            THEN pg_catalog.pg_advisory_unlock($3::pg_catalog.int8) END AS locked,
       pg_catalog.pg_backend_pid()::pg_catalog.int8 AS pid,
       pg_catalog.current_setting('server_version_num')::pg_catalog.int8 AS number,
       pg_catalog.version() AS version
