-- Marks this session: takes the advisory lock $1, which is held as long as the session exists. Where the schema
-- does not leave out tokens after a crash, skips $2 values of the token sequence.
--
-- Promises: a session that fails to share the mark knows that this session is alive. No session is marked
-- twice: where it has an advisory lock, it is another client's of a pooler. The mark is taken twice, so that
-- ping.sql can release it once, and noted with the process in the setting lockapi.session, which goes with
-- DISCARD ALL and with the session. "last" is on disk when the statement returns, and is larger than any token
-- that was issued before a crash of the server. "process" is the ID of the server process that runs the
-- session.
-- Index: none. pg_locks is read once.
-- Race: a crash undoes sequence values that are not on disk yet. No session issues a token that is more than
-- $2, less the 34 values that are logged ahead, above one that it knows to be on disk, and the first session that
-- enters its epoch after a crash leaves out $2 values, as the table lockapi.since_crash tells. The message is
-- written after the value was drawn, so its commit waits for the value and for all that was left out before.
WITH before AS MATERIALIZED (
    SELECT EXISTS (SELECT
                     FROM pg_catalog.pg_locks AS l
                    WHERE l.locktype = 'advisory' AND l.pid = pg_catalog.pg_backend_pid()) AS marked
), drawn AS MATERIALIZED (
    SELECT pg_catalog.max(pg_catalog.nextval('lockapi.fence_seq')) AS last
      FROM pg_catalog.generate_series(1, CASE WHEN pg_catalog.to_regclass('lockapi.since_crash') IS NULL
                                              THEN $2::int8 ELSE 1 END)
)
SELECT CASE WHEN b.marked THEN false
            WHEN pg_catalog.set_config('lockapi.session', pg_catalog.pg_backend_pid() || ' ' || $1::int8, false) IS NULL
            THEN false
            WHEN pg_catalog.pg_try_advisory_lock($1::int8) THEN pg_catalog.pg_try_advisory_lock($1::int8)
            ELSE false END AS marked,
       CASE WHEN d.last IS NOT NULL AND pg_catalog.pg_logical_emit_message(true, 'lockapi', '') IS NOT NULL
            THEN d.last END AS last,
       pg_catalog.pg_backend_pid()::int8 AS process
  FROM before AS b
 CROSS JOIN drawn AS d
