-- Deletes what nobody needs any more: sessions that ended with their notes, and names that nobody used
-- for a month; of each at most $1.
--
-- Promises: a session is deleted only when its mark is free, which it is for good.
-- Index: none, it scans the tables; it runs seldom.
-- Race: a mark is locked before its session is noted, so a session that is seen here and whose mark is
-- free has ended. A name that is noted meanwhile is judged again on its locked row.
WITH dead AS MATERIALIZED (
    SELECT s.mark, s.backend
      FROM lockapi.lock_session AS s
     WHERE s.mark NOT IN (SELECT (l.classid::int8 << 32) | l.objid::int8
                            FROM pg_catalog.pg_locks AS l
                           WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted)
     LIMIT $1::int8
), sessions AS (
    DELETE FROM lockapi.lock_session AS s USING dead AS d WHERE s.mark = d.mark
    RETURNING 1
), notes AS (
    DELETE FROM lockapi.lock_note AS o
     WHERE o.backend IN (SELECT d.backend FROM dead AS d)
       AND o.backend NOT IN (SELECT s.backend FROM lockapi.lock_session AS s
                              WHERE s.mark NOT IN (SELECT d.mark FROM dead AS d))
    RETURNING 1
), unused AS MATERIALIZED (
    SELECT n.lock_key
      FROM lockapi.lock_name AS n
     WHERE n.seen_at < pg_catalog.statement_timestamp() - interval '30 days'
     LIMIT $1::int8
       FOR UPDATE OF n SKIP LOCKED
), names AS (
    DELETE FROM lockapi.lock_name AS n USING unused AS u WHERE n.lock_key = u.lock_key
    RETURNING 1
)
SELECT (SELECT pg_catalog.count(*) FROM sessions) + (SELECT pg_catalog.count(*) FROM notes)
     + (SELECT pg_catalog.count(*) FROM names) AS deleted
