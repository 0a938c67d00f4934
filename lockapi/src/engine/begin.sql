-- Begins a transaction with the isolation level that every statement here is written for.
BEGIN ISOLATION LEVEL READ COMMITTED
