-- Marks this session: takes the advisory lock $1, which lives as long as the session does, and
-- skips a stretch of the token sequence.
--
-- Promises: whoever fails to share the mark knows that the session is alive; every token drawn
-- from now on is larger than any that was drawn before a crash of the server.
-- Index: none.
-- Race: a crash takes back what was drawn since the log was last written to disk. A session sees
-- to that at least once in $2 draws, so all sessions together lose fewer values than are skipped
-- here, and a crash ends all sessions.
SELECT pg_catalog.pg_try_advisory_lock($1::int8) AS marked,
       (SELECT pg_catalog.count(pg_catalog.nextval('lockapi.fence_seq'))
          FROM pg_catalog.generate_series(1, ($2::int8 + 34) * pg_catalog.current_setting('max_connections')::int8)
       ) AS skipped
