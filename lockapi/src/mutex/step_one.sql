-- Releases or tries one advisory lock of this session, alone: the simple form of step.sql.
--
-- Promises: a token when the lock was taken and 0 when it was released; NULL when another session holds
-- it, or this one does not; no waiting.
-- Index: none, advisory locks live in the lock table of the server.
-- Race: the token is drawn only after the lock was taken, so it is larger than any that an
-- earlier holder drew.
SELECT CASE WHEN $2::bool THEN CASE WHEN pg_catalog.pg_advisory_unlock($1::int8) THEN 0 END
            WHEN pg_catalog.pg_try_advisory_lock($1::int8) THEN pg_catalog.nextval('lockapi.fence_seq') END AS done
