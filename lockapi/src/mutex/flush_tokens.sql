-- Makes the tokens that all sessions have drawn so far safe from a crash.
--
-- Promises: the WAL is on disk up to this point when the statement returns, whatever synchronous_commit is
-- set to.
-- Index: none. Race: none; the statement writes to the WAL, so its commit waits for everything that was
-- written before.
SELECT pg_catalog.set_config('synchronous_commit',
                             CASE pg_catalog.current_setting('synchronous_commit')
                                 WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true)
       || pg_catalog.pg_logical_emit_message(true, 'lockapi', '')::text AS value
