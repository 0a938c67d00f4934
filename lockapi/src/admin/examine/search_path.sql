-- Makes the session find what belongs to PostgreSQL, and nothing that others have made.
--
-- Promises: later statements of the session call functions and operators of pg_catalog alone. Index: none. Race: none.
SET search_path = pg_catalog, pg_temp
