-- Gives up the transaction of a statement that failed.
ROLLBACK
