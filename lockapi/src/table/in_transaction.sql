-- Returns whether the mark $1 that was set for a transaction has lasted, that is, whether a transaction is
-- open.
--
-- Promises: true in the transaction that set it.
-- Index: none. Race: none.
SELECT coalesce(pg_catalog.current_setting('lockapi.marker', true), '') OPERATOR(pg_catalog.=) $1::pg_catalog.text AS marked
