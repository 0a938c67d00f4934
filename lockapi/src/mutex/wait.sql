-- Waits for one advisory lock, for a bounded time, on a session of its own.
--
-- Promises: taken in the order of arrival among all sessions of the server, or error 55P03 after
-- the time given; the setting is the statement's own.
-- Index: none. The time is bounded because a waiting statement holds a snapshot, which stalls
-- vacuum and CREATE INDEX CONCURRENTLY.
-- Race: 55P03 can arrive although the lock was granted in that moment, so the session is cleared
-- with pg_advisory_unlock_all after it. The token is drawn after the lock was taken.
WITH bound AS MATERIALIZED (
    SELECT pg_catalog.set_config('lock_timeout', $3::text, true) AS value
), taken AS MATERIALIZED (
    SELECT CASE WHEN $2::bool
                THEN pg_catalog.pg_advisory_lock(($1::int8 >> 32)::int4, (($1::int8 << 32) >> 32)::int4)
                ELSE pg_catalog.pg_advisory_lock($1::int8) END::text AS done
      FROM bound
)
SELECT pg_catalog.nextval('lockapi.fence_seq') AS fence
  FROM taken
