-- Returns the process ID of this session.
--
-- Promises: that of the session that runs the transaction, even behind a proxy.
-- Index: none. Race: none.
SELECT pg_catalog.pg_backend_pid()::pg_catalog.int8 AS pid
