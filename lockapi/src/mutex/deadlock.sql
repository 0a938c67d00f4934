-- Before a session waits for the lock $1 ($2 is true for a pair) on behalf of holders of the locks $3 and $4:
-- records that they wait, and checks whether the lock is held by an owner that waits, directly or through
-- others, for one of their locks.
--
-- Promises: the note is a shared advisory lock for each lock held. Its key is the key of that lock XOR a
-- constant, so a waits-for edge costs one entry of the lock table and ends with the session. Returns those of
-- the held locks that are part of the cycle; none without a cycle. No row, and no note, where the session does
-- not have the mark $5.
-- Index: none. pg_locks is read once, and shows one moment of the lock table.
-- Race: the note is taken before the check, and a waiting session is visible as such, so of sessions that
-- close a cycle one after another, the last one detects it. Two that check before either waits detect it at
-- their next check.
WITH RECURSIVE noted AS MATERIALIZED (
    SELECT pg_catalog.count(CASE WHEN s.pair
               THEN pg_catalog.pg_try_advisory_lock_shared((s.note >> 32)::int4, ((s.note << 32) >> 32)::int4)
               ELSE pg_catalog.pg_try_advisory_lock_shared(s.note) END) AS many
      FROM (SELECT h.key # 7309453129462714281 AS note, h.pair
              FROM ROWS FROM (unnest($3::int8[]), unnest($4::bool[])) AS h (key, pair)
             WHERE pg_catalog.current_setting('lockapi.session', true) = pg_catalog.pg_backend_pid() || ' ' || $5::int8) AS s
), seen AS MATERIALIZED (
    SELECT l.pid, l.granted, (l.classid::int8 << 32) | l.objid::int8 AS key, l.objsubid = 2 AS pair
      FROM noted, pg_catalog.pg_locks AS l
     WHERE noted.many >= 0 AND l.locktype = 'advisory'
       AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d
                          WHERE d.datname = pg_catalog.current_database())
), edge AS MATERIALIZED (
    SELECT note.key # 7309453129462714281 AS held, note.pair AS held_pair, want.key, want.pair
      FROM seen AS want
      JOIN seen AS note ON note.pid = want.pid AND note.granted
     WHERE NOT want.granted
), reached (key, pair) AS (
    SELECT $1::int8, $2::bool
     UNION
    SELECT edge.key, edge.pair
      FROM reached
      JOIN edge ON edge.held = reached.key AND edge.held_pair = reached.pair
)
SELECT coalesce(pg_catalog.array_agg(r.key), '{}') AS keys,
       coalesce(pg_catalog.array_agg(r.pair), '{}') AS pairs
  FROM reached AS r
  JOIN ROWS FROM (unnest($3::int8[]), unnest($4::bool[])) AS h (key, pair)
    ON h.key = r.key AND h.pair = r.pair
HAVING pg_catalog.current_setting('lockapi.session', true) = pg_catalog.pg_backend_pid() || ' ' || $5::int8
