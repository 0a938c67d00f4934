-- Waits for an advisory lock for the open transaction.
--
-- Promises: true and held until the transaction ends, or false after the lock_timeout that was set before,
-- with the transaction unchanged; NULL at once if that setting did not last, because no transaction is open.
-- On a standby, where the lock would exclude no session of the primary, nothing is locked, and the second
-- column is true.
-- Index: none. Race: the function waits in a subtransaction, so a lock that was granted at the moment of its
-- timeout is released by the rollback of the subtransaction.
SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN false
            WHEN pg_catalog.current_setting('lockapi.marker', true) OPERATOR(pg_catalog.=) $3::pg_catalog.text
            THEN lockapi.await_lock($1::pg_catalog.int8, $2::pg_catalog.bool, false, true) END AS ok,
       pg_catalog.pg_is_in_recovery() AS standby
