-- Marks where the transaction of the program is, so that a refusal keeps no row locked.
SAVEPOINT lockapi_limit
