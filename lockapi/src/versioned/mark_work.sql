-- The part of begin_work.sql after the BEGIN, for transactions that a library begins.
--
-- Promises: as there. Index: none. Race: none, the transaction is its own.
SET LOCAL lockapi.work = 'begun'
