-- Rolls back to the savepoint: rows locked since then are unlocked, rows created since then are gone.
ROLLBACK TO SAVEPOINT lockapi_limit;
RELEASE SAVEPOINT lockapi_limit
