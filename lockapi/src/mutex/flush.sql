-- Makes the tokens that all sessions drew so far safe from a crash.
--
-- Promises: the log is on disk up to here when it returns, whatever synchronous_commit is set to.
-- Index: none. Race: none; the statement writes to the log, so its commit waits for all that was
-- written before.
SELECT pg_catalog.set_config('synchronous_commit',
                             CASE pg_catalog.current_setting('synchronous_commit')
                                 WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true)
       || pg_catalog.pg_logical_emit_message(true, 'lockapi', '')::text AS value
