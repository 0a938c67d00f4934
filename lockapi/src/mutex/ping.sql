-- Checks that the session with the mark $1 is alive and still has its locks.
--
-- Promises: a row if it has them; none if a pooler has sent the statement to another session, or if another
-- client of a pooler has released the locks of the session, the mark among them. The session holds the mark
-- twice, and this releases it once and takes it again.
-- Index: none. Race: the mark is never free, so no waiter can obtain it.
SELECT o.lives
  FROM (SELECT CASE WHEN pg_catalog.pg_advisory_unlock($1::int8)
                    THEN pg_catalog.pg_try_advisory_lock($1::int8) END AS lives
         WHERE pg_catalog.current_setting('lockapi.session', true) = pg_catalog.pg_backend_pid() || ' ' || $1::int8
        OFFSET 0) AS o
 WHERE o.lives
