-- Waits for one advisory lock, exclusive or shared, for a limited time, in a session of its own.
--
-- Promises: taken in the order of arrival among all sessions of the server, or false after the given time; the
-- setting applies to this statement only. No row, and no wait, where the session does not have the mark $5.
-- Index: none. The time is limited because a waiting statement holds a snapshot, which stalls vacuum and
-- CREATE INDEX CONCURRENTLY.
-- Race: the time can run out, or the wait be interrupted, at the moment when the lock is granted, so a failed
-- wait is followed by a release. The token is drawn after the lock was taken. Holders of a shared lock are not
-- distinguished, and get no token.
WITH bound AS MATERIALIZED (
    SELECT pg_catalog.set_config('lock_timeout', $3::text, true) AS value
     WHERE pg_catalog.current_setting('lockapi.session', true) = pg_catalog.pg_backend_pid() || ' ' || $5::int8
), taken AS MATERIALIZED (
    SELECT lockapi.await_lock($1::int8, $2::bool, $4::bool, false) AS ok
      FROM bound
)
SELECT taken.ok,
       CASE WHEN taken.ok AND NOT $4::bool THEN pg_catalog.nextval('lockapi.fence_seq') END AS fence
  FROM taken
