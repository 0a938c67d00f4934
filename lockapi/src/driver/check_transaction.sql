-- Fails in a transaction in which a statement has failed before.
--
-- Promises: a commit that follows at once commits. Without it PostgreSQL would roll back and report the commit as done.
-- Index: none. Race: none, the transaction is its own.
SELECT
