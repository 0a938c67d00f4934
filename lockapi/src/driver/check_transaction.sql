-- Fails in a transaction in which a statement has failed before, and where no transaction is open.
--
-- Promises: a commit that follows at once commits what the transaction wrote. Without it PostgreSQL would roll back, or
-- do nothing, and report the commit as done. The savepoint ends with the transaction.
-- Index: none. Race: none, the transaction is its own.
SAVEPOINT lockapi_before_commit
