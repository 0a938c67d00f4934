-- Begins a transaction with the isolation level that every statement here is written for, which may write
-- whatever the role's default is. A hot standby rejects it with SQLSTATE 0A000.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE
