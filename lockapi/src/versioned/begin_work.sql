-- Begins the transaction of work, which check_work.sql knows again.
--
-- Promises: no other transaction has the setting, which ends with this one. What has to come before the first query, such
-- as the isolation level, can still follow.
-- Index: none. Race: none, the transaction is its own.
BEGIN; SET LOCAL lockapi.work = 'begun'
