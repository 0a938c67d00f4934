-- Interrupts the waits of other sessions, each known by its mark ($1) and its process ($2).
--
-- Promises: a session that still has its mark is told to give up the statement that it runs, if it
-- runs one; nothing else is touched, whoever has that process by now.
-- Index: none. Race: the signal is sent when this is answered, and an idle session ignores it, so it
-- cannot hit a statement that its session is sent afterwards.
SELECT CASE WHEN NOT pg_catalog.pg_try_advisory_xact_lock_shared(i.mark)
            THEN pg_catalog.pg_cancel_backend(i.process::int4)
            ELSE false END AS sent
  FROM ROWS FROM (unnest($1::int8[]), unnest($2::int8[])) WITH ORDINALITY AS i (mark, process, n)
 ORDER BY i.n
