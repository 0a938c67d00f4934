-- Makes this session receive the notifications of notify.sql, until unlisten.sql or the end of the session.
--
-- Promises: notifications that are committed after this has returned are received; those committed before are
-- not, so a program that waits for one has to check once more.
-- Index: none. Race: none.
LISTEN lockapi
