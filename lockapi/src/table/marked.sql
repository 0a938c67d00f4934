-- Tells whether the mark $1 that was set for a transaction has lasted: whether one is open.
--
-- Promises: true in the transaction that set it.
-- Index: none. Race: none.
SELECT coalesce(pg_catalog.current_setting('lockapi.marker', true), '') = $1::text AS marked
