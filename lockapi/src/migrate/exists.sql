-- Tells whether the table of applied migrations exists.
--
-- Promises: no error on an empty database. Index: none. Race: asked again under the lock.
SELECT pg_catalog.to_regclass('lockapi.migration') IS NOT NULL AS found
