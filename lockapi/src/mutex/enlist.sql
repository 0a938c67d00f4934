-- Marks this session: takes the advisory lock $1, which is held as long as the session exists, and skips $2
-- values of the token sequence.
--
-- Promises: a session that fails to share the mark knows that this session is alive. No session is marked
-- twice: where it has an advisory lock, it is another client's of a pooler. The mark is taken twice, so that
-- ping.sql can release it once, and noted with the process in the setting lockapi.session, which goes with
-- DISCARD ALL and with the session. "last" is on disk when the statement returns, and is larger than any token
-- that was issued before a crash of the server. "process" is the ID of the server process that runs the
-- session.
-- Index: none. pg_locks is read once.
-- Race: a crash undoes sequence values that are not on disk yet. No session issues a token that is more than
-- $2, less the 33 values that are logged ahead, above one that it knows to be on disk.
WITH before AS MATERIALIZED (
    SELECT EXISTS (SELECT
                     FROM pg_catalog.pg_locks AS l
                    WHERE l.locktype = 'advisory' AND l.pid = pg_catalog.pg_backend_pid()) AS marked
)
SELECT CASE WHEN b.marked THEN false
            WHEN pg_catalog.set_config('lockapi.session', pg_catalog.pg_backend_pid() || ' ' || $1::int8, false) IS NULL
            THEN false
            WHEN pg_catalog.pg_try_advisory_lock($1::int8) THEN pg_catalog.pg_try_advisory_lock($1::int8)
            ELSE false END AS marked,
       (SELECT pg_catalog.max(pg_catalog.nextval('lockapi.fence_seq'))
          FROM pg_catalog.generate_series(1, $2::int8)) AS last,
       pg_catalog.pg_backend_pid()::int8 AS process
  FROM before AS b
