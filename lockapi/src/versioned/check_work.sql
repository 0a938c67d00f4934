-- Fails in another transaction than the one that begin_work.sql or mark_work.sql has marked, and where none is open; and,
-- as every statement, in a transaction in which a statement has failed before.
--
-- Promises: a commit that follows at once commits what the work wrote. Without it PostgreSQL would roll back, do nothing,
-- or commit what the work has written since it ended the transaction, and report the commit as done. The message of the
-- error has the text below in any language, for drivers that do not tell its code.
-- Index: none. Race: none, the transaction is its own.
SELECT (CASE WHEN pg_catalog.current_setting('lockapi.work', true) OPERATOR(pg_catalog.=) 'begun'
             THEN 'true' ELSE 'the transaction of the work has ended' END)::pg_catalog.bool AS same
