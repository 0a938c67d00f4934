-- Ends a transaction that was given up.
ROLLBACK
