-- Lists the migrations that have been applied.
--
-- Promises: every row. Index: none, the table has few rows. Race: read again under the lock.
SELECT m.version, m.checksum FROM lockapi.migration AS m ORDER BY m.version
