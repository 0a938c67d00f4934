-- Records a migration that has been applied.
--
-- Promises: in the transaction of the migration itself. Index: the primary key. Race: under the lock.
INSERT INTO lockapi.migration (version, name, checksum)
SELECT $1::pg_catalog.int8, $2::pg_catalog.text, $3::pg_catalog.text
RETURNING version
