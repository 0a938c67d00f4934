-- As search_path.sql, for the rest of the transaction.
--
-- Promises: later statements of the transaction call functions and operators of pg_catalog alone. Index: none. Race: none.
SET LOCAL search_path = pg_catalog, pg_temp
