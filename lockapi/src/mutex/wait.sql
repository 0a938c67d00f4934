-- Waits for one advisory lock, alone or shared, for a bounded time, on a session of its own.
--
-- Promises: taken in the order of arrival among all sessions of the server, or false after the time
-- given; the setting is the statement's own.
-- Index: none. The time is bounded because a waiting statement holds a snapshot, which stalls
-- vacuum and CREATE INDEX CONCURRENTLY.
-- Race: the time can run out, or the wait be interrupted, in the moment in which the lock is granted,
-- so a wait that failed is followed by a release. The token is drawn after the lock was taken; those who
-- share a lock are not told apart, and get none.
WITH bound AS MATERIALIZED (
    SELECT pg_catalog.set_config('lock_timeout', $3::text, true) AS value
), taken AS MATERIALIZED (
    SELECT lockapi.await_lock($1::int8, $2::bool, $4::bool, false) AS ok
      FROM bound
)
SELECT taken.ok,
       CASE WHEN taken.ok AND NOT $4::bool THEN pg_catalog.nextval('lockapi.fence_seq') END AS fence
  FROM taken
