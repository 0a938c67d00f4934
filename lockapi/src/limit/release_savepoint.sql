-- Releases the savepoint: what was taken since then belongs to the transaction.
RELEASE SAVEPOINT lockapi_limit
