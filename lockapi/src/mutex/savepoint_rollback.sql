-- Undoes a wait that failed: its lock, if it was granted after all, and its settings.
ROLLBACK TO SAVEPOINT lockapi; RELEASE SAVEPOINT lockapi
