-- Records a migration that has been applied.
--
-- Promises: in the transaction of the migration itself. Index: the primary key. Race: under the lock.
INSERT INTO lockapi.migration (version, name, checksum)
SELECT $1::int8, $2::text, $3::text
RETURNING version
