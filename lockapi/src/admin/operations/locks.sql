-- Reads who holds advisory locks: of the namespace $1, or the one lock $2, $3, or (NULL) all.
--
-- Promises: at most $4 of them, ordered by namespace and name, those without a name last; each lock of the
-- server is read once, so the time grows with their number.
-- Index: the primary key of lock_name. Race: none, it only reads; the answer may be old on arrival.
SELECT l.namespace, l.name, l.mode, l.owner, a.application_name AS application, a.usename::text AS username,
       l.pid::int8 AS pid, l.fence,
       (extract(epoch FROM pg_catalog.clock_timestamp() - l.since) * 1000000)::int8 AS held_for
  FROM (SELECT h.*
          FROM lockapi.held_locks() AS h
         WHERE CASE WHEN $2::int8 IS NOT NULL THEN h.lock_key = $2::int8 AND h.pair = $3::bool
                    ELSE $1::text IS NULL OR h.namespace = $1::text END
         ORDER BY h.namespace COLLATE "C", h.name COLLATE "C", h.pid
         LIMIT $4::int8) AS l
  LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
 ORDER BY l.namespace COLLATE "C", l.name COLLATE "C", l.pid
