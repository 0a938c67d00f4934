-- Reads who holds leases: of the namespace $1 or (NULL) of all, with the key $2 or (NULL) any, after the key $3, the
-- namespace $4 and the slot $5.
--
-- Promises: at most $7 of the leases that are held now, among the first $6 that were held at some time, ordered by key,
-- namespace and slot, so the time does not grow with the number of leases that have ended. A last row without a slot
-- returns the place of the last examined row, unless no more rows follow.
-- Index: the primary key of lease. Race: none, it only reads; the answer may be old on arrival.
WITH part AS MATERIALIZED (
    (SELECT l.*
       FROM lockapi.lease AS l
      WHERE $2::text IS NULL AND (l.key, l.namespace, l.slot) > ($3::text, $4::text, $5::int8)
      ORDER BY l.key, l.namespace, l.slot
      LIMIT $6::int8)
     UNION ALL
    (SELECT l.*
       FROM lockapi.lease AS l
      WHERE l.key = $2::text AND (l.key, l.namespace, l.slot) > ($3::text, $4::text, $5::int8)
      ORDER BY l.key, l.namespace, l.slot
      LIMIT $6::int8)
), held AS MATERIALIZED (
    SELECT p.*
      FROM part AS p
     WHERE p.released_at IS NULL AND p.expires_at > pg_catalog.clock_timestamp()
       AND ($1::text IS NULL OR p.namespace = $1::text)
     ORDER BY p.key, p.namespace, p.slot
     LIMIT $7::int8
)
SELECT h.namespace, h.key, h.slot::int8 AS slot, h.owner, h.data, h.fence,
       (extract(epoch FROM pg_catalog.clock_timestamp() - h.acquired_at) * 1000000)::int8 AS held_for,
       (extract(epoch FROM h.expires_at - pg_catalog.clock_timestamp()) * 1000000)::int8 AS remaining,
       NULL::int8 AS last
  FROM held AS h
 UNION ALL
SELECT e.namespace, e.key, NULL, NULL, NULL, NULL, NULL, NULL, e.slot::int8
  FROM (SELECT p.namespace, p.key, p.slot
          FROM part AS p
         ORDER BY p.key DESC, p.namespace DESC, p.slot DESC
         LIMIT 1) AS e
 WHERE (SELECT pg_catalog.count(*) FROM part) >= $6::int8
