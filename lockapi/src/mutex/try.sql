-- Tries one advisory lock of this session: the form of step.sql for a lone request.
--
-- Promises: a token when the lock was taken, NULL when another session holds it; no waiting.
-- Index: none, advisory locks live in the lock table of the server.
-- Race: the token is drawn only after the lock was taken, so it is larger than any that an
-- earlier holder drew.
SELECT CASE WHEN CASE WHEN $2::bool
                      THEN pg_catalog.pg_try_advisory_lock(($1::int8 >> 32)::int4, (($1::int8 << 32) >> 32)::int4)
                      ELSE pg_catalog.pg_try_advisory_lock($1::int8) END
            THEN pg_catalog.nextval('lockapi.fence_seq') END AS fence
