-- Locks a table of the program for the open transaction.
--
-- Promises: true and locked until the transaction ends, or false after the lock_timeout that was set before,
-- or at once with $4, with the transaction unchanged; NULL at once if that setting did not last, because no
-- transaction is open. On a standby, where the lock would exclude no session of the primary, nothing is
-- locked, and the second column is true.
-- Index: none. Race: the function locks in a subtransaction, so a lock that was granted at the moment of its
-- timeout is released by the rollback of the subtransaction.
SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN false
            WHEN pg_catalog.current_setting('lockapi.marker', true) OPERATOR(pg_catalog.=) $5::pg_catalog.text
            THEN lockapi.lock_table($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.bool)
            END AS ok,
       pg_catalog.pg_is_in_recovery() AS standby
