-- Tries an advisory lock for the open transaction.
--
-- Promises: true when the transaction holds the lock until it ends; false, without waiting, when another
-- session holds it. On a standby, where the lock would exclude no session of the primary, nothing is locked,
-- and the second column is true.
-- Index: none. Race: none, the server decides.
SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN false
            WHEN $2::pg_catalog.bool
            THEN pg_catalog.pg_try_advisory_xact_lock(
                     ($1::pg_catalog.int8 OPERATOR(pg_catalog.>>) 32)::pg_catalog.int4,
                     (($1::pg_catalog.int8 OPERATOR(pg_catalog.<<) 32) OPERATOR(pg_catalog.>>) 32)::pg_catalog.int4)
            ELSE pg_catalog.pg_try_advisory_xact_lock($1::pg_catalog.int8) END AS ok,
       pg_catalog.pg_is_in_recovery() AS standby
