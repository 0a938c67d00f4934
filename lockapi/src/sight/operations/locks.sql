-- Reads who holds advisory locks: of the namespace $1, or the one lock $2, $3, or (NULL) all.
--
-- Promises: at most $4 of them, by namespace and name; each lock of the server is read once.
-- Index: the primary keys of lock_name and lock_note; the server's lock table is joined by hash.
-- Race: none, it only reads; the answer may be old on arrival.
SELECT p.namespace, p.name, p.mode, p.owner, a.application_name AS application, a.usename::text AS username,
       p.pid::int8 AS pid, o.fence,
       (extract(epoch FROM pg_catalog.clock_timestamp() - o.since) * 1000000)::int8 AS held_for
  FROM (SELECT n.namespace, coalesce(n.name, lockapi.lock_number(l.lock_key, l.pair)) AS name, l.mode, l.owner,
               l.pid, l.backend, l.lock_key, l.pair
          FROM lockapi.advisory_locks() AS l
          LEFT JOIN lockapi.lock_name AS n ON n.lock_key = l.lock_key AND NOT l.pair
         WHERE l.granted AND NOT l.is_mark
           AND CASE WHEN $2::int8 IS NOT NULL THEN l.lock_key = $2::int8 AND l.pair = $3::bool
                    ELSE $1::text IS NULL OR n.namespace = $1::text END
         ORDER BY 1, 2, l.pid
         LIMIT $4::int8) AS p
  LEFT JOIN lockapi.lock_note AS o
    ON o.backend = p.backend AND o.lock_key = p.lock_key AND o.pair = p.pair AND NOT o.waits
  LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = p.pid
 ORDER BY p.namespace, p.name, p.pid
