-- Begins a transaction on a connection of whose role nothing is known yet, with the isolation level that every
-- statement here is written for and without the time limits of the role: settings are only changed on connections
-- that are known to be sessions of their own.
--
-- Promises: nothing is ended by a limit of the role, from the first statement on. PostgreSQL 17 also has one
-- for the whole transaction, which is a few statements long.
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = 0;
SET LOCAL idle_in_transaction_session_timeout = '10s'
