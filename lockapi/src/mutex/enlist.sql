-- Marks this session: takes the advisory lock $1, which lives as long as the session does, and
-- skips $2 values of the token sequence.
--
-- Promises: whoever fails to share the mark knows that the session is alive; "last" is on disk when
-- this is answered, and larger than any token that was given out before a crash of the server. "process"
-- is the one that runs the session.
-- Index: none.
-- Race: a crash takes back values that are not on disk yet. No session gives out a token that is
-- more than $2, less the 33 values that are logged ahead, above one that it knows to be on disk.
SELECT pg_catalog.pg_try_advisory_lock($1::int8) AS marked,
       (SELECT pg_catalog.max(pg_catalog.nextval('lockapi.fence_seq'))
          FROM pg_catalog.generate_series(1, $2::int8)) AS last,
       pg_catalog.pg_backend_pid()::int8 AS process
