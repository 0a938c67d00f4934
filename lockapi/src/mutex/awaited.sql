-- Tells for which advisory locks some session waits.
--
-- Promises: one answer for each lock ($1; $2 tells whether it is a pair), in its order; one look at
-- the lock table for all.
-- Index: none. Race: none; a session that begins to wait afterwards is seen by the next look.
SELECT EXISTS (SELECT
                 FROM pg_catalog.pg_locks AS l
                WHERE l.locktype = 'advisory' AND NOT l.granted
                  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d
                                     WHERE d.datname = pg_catalog.current_database())
                  AND ((l.classid::int8 << 32) | l.objid::int8) = s.key
                  AND (l.objsubid = 2) = s.pair) AS awaited
  FROM ROWS FROM (unnest($1::int8[]), unnest($2::bool[])) WITH ORDINALITY AS s (key, pair, nr)
 ORDER BY s.nr
