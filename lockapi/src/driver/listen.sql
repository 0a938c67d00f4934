-- Has this session hear what is sent with notify.sql, until unlisten.sql or its end.
--
-- Promises: what is committed after this has returned is heard; what was committed before is not, so
-- whoever waits for it looks once more.
-- Index: none. Race: none.
LISTEN lockapi
