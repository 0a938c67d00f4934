-- Returns which advisory locks have waiters.
--
-- Promises: one result for each lock ($1; $2 is true for a pair), in its order; the lock table is read once
-- for all of them.
-- Index: none. Race: none; a session that begins to wait afterwards is seen by the next call.
SELECT EXISTS (SELECT
                 FROM pg_catalog.pg_locks AS l
                WHERE l.locktype = 'advisory' AND NOT l.granted
                  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d
                                     WHERE d.datname = pg_catalog.current_database())
                  AND ((l.classid::int8 << 32) | l.objid::int8) = s.key
                  AND (l.objsubid = 2) = s.pair) AS has_waiters
  FROM ROWS FROM (unnest($1::int8[]), unnest($2::bool[])) WITH ORDINALITY AS s (key, pair, nr)
 ORDER BY s.nr
