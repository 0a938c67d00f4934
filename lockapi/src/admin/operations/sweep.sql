-- Deletes rows that are no longer needed: at most $2 sessions that ended, with their notes, and names that
-- nobody used for a month, among the $2 that follow the key $1.
--
-- Promises: a session is deleted only when its mark is free; a free mark stays free. Returns how many rows
-- were deleted, how many names were examined, and the last of those.
-- Index: the primary key of lock_name, for at most $2 rows, and that of lock_note to delete. Sessions are read completely: there are as many
-- as programs hold mutexes.
-- Race: a mark is locked before its session is recorded, so a session that is visible here and whose mark is
-- free has ended. A name that is recorded meanwhile is checked again on its locked row, and so is the time of a note: a
-- backend that has a new session may write it anew.
WITH dead AS MATERIALIZED (
    SELECT s.mark, s.backend
      FROM lockapi.lock_session AS s
     WHERE s.mark NOT IN (SELECT (l.classid::int8 << 32) | l.objid::int8
                            FROM pg_catalog.pg_locks AS l
                           WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted)
     LIMIT $2::int8
), sessions AS (
    DELETE FROM lockapi.lock_session AS s USING dead AS d WHERE s.mark = d.mark
    RETURNING 1
), old_notes AS MATERIALIZED (
    SELECT o.backend, o.lock_key, o.pair, o.waits, o.since
      FROM lockapi.lock_note AS o
     WHERE o.backend IN (SELECT d.backend FROM dead AS d)
       AND o.backend NOT IN (SELECT s.backend FROM lockapi.lock_session AS s
                              WHERE s.mark NOT IN (SELECT d.mark FROM dead AS d))
), notes AS (
    DELETE FROM lockapi.lock_note AS o
     USING old_notes AS n
     WHERE o.backend = n.backend AND o.lock_key = n.lock_key AND o.pair = n.pair AND o.waits = n.waits
       AND o.since = n.since
    RETURNING 1
), part AS MATERIALIZED (
    SELECT n.lock_key, n.seen_at
      FROM lockapi.lock_name AS n
     WHERE n.lock_key > $1::int8
     ORDER BY n.lock_key
     LIMIT $2::int8
), unused AS MATERIALIZED (
    SELECT u.at
      FROM part AS p
     CROSS JOIN LATERAL (
           SELECT n.ctid AS at
             FROM lockapi.lock_name AS n
            WHERE n.lock_key = p.lock_key
              AND n.seen_at < pg_catalog.statement_timestamp() - interval '720 hours'
              FOR UPDATE OF n SKIP LOCKED) AS u
     WHERE p.seen_at < pg_catalog.statement_timestamp() - interval '720 hours'
), names AS (
    DELETE FROM lockapi.lock_name AS n
     WHERE n.ctid = ANY (ARRAY(SELECT u.at FROM unused AS u))
    RETURNING 1
)
SELECT (SELECT pg_catalog.count(*) FROM sessions) + (SELECT pg_catalog.count(*) FROM notes)
     + (SELECT pg_catalog.count(*) FROM names) AS deleted,
       (SELECT pg_catalog.count(*) FROM part) AS seen,
       (SELECT pg_catalog.max(p.lock_key) FROM part AS p) AS last
