-- Lets this session commit without waiting for the log.
--
-- Promises: the setting lasts as long as the session, which only locks and draws tokens; flush.sql
-- bounds how many tokens a crash can take back, and enlist.sql skips them.
-- Index: none. Race: it is set after the tokens that enlist.sql skipped are safe on disk.
SELECT pg_catalog.set_config('synchronous_commit', 'off', false) AS value
