-- Makes the tokens that were drawn so far safe from a crash.
--
-- Promises: the log is on disk up to here when it returns.
-- Index: none. Race: none, the commit of this statement waits for the log because it wrote to it.
SELECT pg_catalog.set_config('synchronous_commit', 'on', true)
       || pg_catalog.pg_logical_emit_message(true, 'lockapi', '')::text AS value
