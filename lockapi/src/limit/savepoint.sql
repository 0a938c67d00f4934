-- Sets a savepoint in the transaction of the program, so that a refusal keeps no row locked.
SAVEPOINT lockapi_limit
