-- Opens the savepoint that lets the transaction survive a wait that times out.
SAVEPOINT lockapi
