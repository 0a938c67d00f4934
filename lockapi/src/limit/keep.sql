-- Forgets the mark: what was taken since belongs to the transaction.
RELEASE SAVEPOINT lockapi_limit
