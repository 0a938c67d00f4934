-- Undoes what was done since the mark: rows that were locked are free, rows that were created are gone.
ROLLBACK TO SAVEPOINT lockapi_limit;
RELEASE SAVEPOINT lockapi_limit
