-- Waits for an advisory lock for the transaction that is open.
--
-- Promises: true and held until the transaction ends, or false after the lock_timeout that was set
-- before, with the transaction as it was.
-- Index: none. Race: the function waits in a subtransaction, so a lock that was granted in the
-- moment of its timeout goes with the rollback of that.
SELECT lockapi.await_lock($1::int8, $2::bool, true) AS ok
