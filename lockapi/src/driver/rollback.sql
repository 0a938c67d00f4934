-- Rolls back the transaction of a statement that failed.
ROLLBACK
