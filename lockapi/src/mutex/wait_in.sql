-- Waits for an advisory lock for the transaction that is open.
--
-- Promises: held until the transaction ends, or 55P03 after the lock_timeout that was set before.
-- Index: none. Race: the statement runs in a savepoint, so a lock that was granted in the moment
-- of its timeout goes with the rollback to it.
SELECT CASE WHEN $2::bool
            THEN pg_catalog.pg_advisory_xact_lock(($1::int8 >> 32)::int4, (($1::int8 << 32) >> 32)::int4)
            ELSE pg_catalog.pg_advisory_xact_lock($1::int8) END::text AS done
