-- Asks the session that has the mark $1 whether it lives, and has its locks.
--
-- Promises: a row if it has, and none if a pooler has sent the statement to another, or another client of a pooler
-- has used the session: with its locks goes the mark. The session has that twice, and it is released once and taken
-- again.
-- Index: none. Race: the mark is never free, so nobody who waits for it is given it.
SELECT o.lives
  FROM (SELECT CASE WHEN pg_catalog.pg_advisory_unlock($1::int8)
                    THEN pg_catalog.pg_try_advisory_lock($1::int8) END AS lives
         WHERE pg_catalog.current_setting('lockapi.session', true) = pg_catalog.pg_backend_pid() || ' ' || $1::int8
        OFFSET 0) AS o
 WHERE o.lives
