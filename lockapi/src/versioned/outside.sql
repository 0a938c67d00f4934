-- Tells whether no transaction is open, for drivers that know only those that they have begun.
--
-- Promises: sent as a simple query, it is a transaction of its own, which begins with it, unless one is open: that has
-- begun before. With the extended protocol it would not be so.
-- Index: none. Race: none, the transaction is its own.
SELECT pg_catalog.now() OPERATOR(pg_catalog.=) pg_catalog.statement_timestamp() AS outside
