-- Tries an advisory lock for the transaction that is open.
--
-- Promises: true when the transaction holds the lock until it ends; false, without waiting, when
-- another session holds it.
-- Index: none. Race: none, the server decides.
SELECT CASE WHEN $2::pg_catalog.bool
            THEN pg_catalog.pg_try_advisory_xact_lock(
                     ($1::pg_catalog.int8 OPERATOR(pg_catalog.>>) 32)::pg_catalog.int4,
                     (($1::pg_catalog.int8 OPERATOR(pg_catalog.<<) 32) OPERATOR(pg_catalog.>>) 32)::pg_catalog.int4)
            ELSE pg_catalog.pg_try_advisory_xact_lock($1::pg_catalog.int8) END AS ok
