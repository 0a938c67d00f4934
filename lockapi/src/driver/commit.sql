-- Commits the transaction of one statement.
COMMIT
