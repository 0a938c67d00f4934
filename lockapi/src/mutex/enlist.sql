-- Marks this session: takes the advisory lock $1, which lives as long as the session does, and
-- skips a stretch of the token sequence.
--
-- Promises: whoever fails to share the mark knows that the session is alive; every token drawn
-- from now on is larger than any that was issued before a crash of the server.
-- Index: none.
-- Race: nextval logs 32 values at a time and a session that draws without logging does not wait
-- for the log, so a crash can take back 33 values for each connection; twice that many are burnt
-- before the first lock of a session, because a crash ends all sessions.
SELECT pg_catalog.pg_try_advisory_lock($1::int8) AS marked,
       (SELECT pg_catalog.count(pg_catalog.nextval('lockapi.fence_seq'))
          FROM pg_catalog.generate_series(1, 66 * pg_catalog.current_setting('max_connections')::int8)) AS burnt
