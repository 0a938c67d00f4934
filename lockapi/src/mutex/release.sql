-- Releases one advisory lock of this session: the form of step.sql for a lone request.
--
-- Promises: true when it was held and is free now, false when this session did not hold it.
-- Index: none, advisory locks live in the lock table of the server. Race: none, only the session
-- itself releases its locks.
SELECT CASE WHEN $2::bool
            THEN pg_catalog.pg_advisory_unlock(($1::int8 >> 32)::int4, (($1::int8 << 32) >> 32)::int4)
            ELSE pg_catalog.pg_advisory_unlock($1::int8) END AS released
