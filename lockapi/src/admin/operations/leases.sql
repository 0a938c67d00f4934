-- Reads who holds leases: of the namespace $1 or (NULL) of all, with the key $2 or (NULL) any.
--
-- Promises: at most $3 of the leases that are held now, ordered by key and namespace.
-- Index: the primary key of lease. Race: none, it only reads; the answer may be old on arrival.
SELECT l.namespace, l.key, l.slot::int8 AS slot, l.owner, l.data, l.fence,
       (extract(epoch FROM pg_catalog.clock_timestamp() - l.acquired_at) * 1000000)::int8 AS held_for,
       (extract(epoch FROM l.expires_at - pg_catalog.clock_timestamp()) * 1000000)::int8 AS remaining
  FROM lockapi.lease AS l
 WHERE l.released_at IS NULL AND l.expires_at > pg_catalog.clock_timestamp()
   AND ($1::text IS NULL OR l.namespace = $1::text)
   AND ($2::text IS NULL OR l.key = $2::text)
 ORDER BY l.key, l.namespace, l.slot
 LIMIT $3::int8
