-- Interrupts the waits of other sessions, each identified by its mark ($1) and its process ID ($2).
--
-- Promises: a session that still has its mark is signalled to cancel the statement that it runs, if it runs
-- one. Nothing else is affected, whichever session has that process ID by now.
-- Index: none. Race: the signal has been sent when the statement returns, and an idle session ignores it, so
-- it cannot cancel a statement that is sent to the session afterwards.
SELECT CASE WHEN NOT pg_catalog.pg_try_advisory_xact_lock_shared(i.mark)
            THEN pg_catalog.pg_cancel_backend(i.process::int4)
            ELSE false END AS sent
  FROM ROWS FROM (unnest($1::int8[]), unnest($2::int8[])) WITH ORDINALITY AS i (mark, process, n)
 ORDER BY i.n
