-- Tells whether no transaction was open on the connection.
--
-- Promises: true when this statement began the transaction that it runs in.
-- Index: none. Race: none.
SELECT pg_catalog.transaction_timestamp() = pg_catalog.statement_timestamp() AS idle
