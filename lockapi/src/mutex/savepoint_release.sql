-- Closes the savepoint of a wait that succeeded; the lock stays with the transaction.
RELEASE SAVEPOINT lockapi
