-- Releases or tries one exclusive advisory lock of this session: the simple form of lock_request.sql.
--
-- Promises: a token if the lock was taken and 0 if it was released; NULL if another session holds the lock
-- that is tried, or this session does not hold the lock that is released. It never waits. No row, and nothing
-- done, where the session does not have the mark $3.
-- Index: none, advisory locks are kept in the lock table of the server.
-- Race: the token is drawn only after the lock was taken, so it is larger than any that an earlier holder
-- drew.
SELECT CASE WHEN $2::bool THEN CASE WHEN pg_catalog.pg_advisory_unlock($1::int8) THEN 0 END
            WHEN pg_catalog.pg_try_advisory_lock($1::int8) THEN pg_catalog.nextval('lockapi.fence_seq') END AS done
 WHERE pg_catalog.current_setting('lockapi.session', true) = pg_catalog.pg_backend_pid() || ' ' || $3::int8
