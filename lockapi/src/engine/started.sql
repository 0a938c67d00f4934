-- Returns when the server was started, in microseconds.
--
-- Promises: two connections that get the same answer are served by one server.
-- Index: none. Race: none; a server that is started anew ends its connections.
SELECT (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8 AS started
