-- Tells whether the table of applied migrations exists.
--
-- Promises: no error on an empty database. Index: those of the catalogs.
-- Race: asked again under the lock. It reads the catalogs as tables: to_regclass() answers from a
-- cache that a transaction which only waited for an advisory lock does not bring up to date.
SELECT EXISTS (
           SELECT
             FROM pg_catalog.pg_class AS c
             JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
            WHERE n.nspname = 'lockapi' AND c.relname = 'migration'
       ) AS found
