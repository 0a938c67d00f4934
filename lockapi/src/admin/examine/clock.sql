-- Reads the clock of the server, in microseconds since 1970.
--
-- Promises: the time at which it was asked. Index: none. Race: none.
SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::int8 AS now
