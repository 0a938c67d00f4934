-- Lets this session commit asynchronously, without waiting for the WAL.
--
-- Promises: the setting lasts as long as the session, which only locks and draws tokens; flush_tokens.sql limits how
-- many tokens a crash can undo, which are left out afterwards. No row, and nothing set, where the session does not
-- have the mark $1.
-- Index: none. Race: it is set after what mark_session.sql drew is safe on disk.
SELECT pg_catalog.set_config('synchronous_commit', 'off', false) AS value
 WHERE pg_catalog.current_setting('lockapi.session', true) = pg_catalog.pg_backend_pid() || ' ' || $1::int8
