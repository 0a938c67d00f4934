-- Reads which leases and leaderships were acquired since $1, in microseconds since 1970.
--
-- Promises: at most 1,000 of them, in the order of their keys, of the first 10,000 rows. Permits and leased mutexes, which
-- change hands by nature, are left out.
-- Index: the primary key of lease. Race: none, it only reads; a lease that is held for less than the time between two
-- readings may be missed.
WITH part AS MATERIALIZED (
    SELECT l.namespace, l.key, l.slot, l.fence, l.owner, l.acquired_at
      FROM lockapi.lease AS l
     ORDER BY l.key, l.namespace, l.slot
     LIMIT 10000
)
SELECT p.namespace || '/' || p.key AS lease, p.slot = -1 AS leads, p.fence, p.owner
  FROM part AS p
 WHERE p.slot IN (-1, 0) AND p.acquired_at >= pg_catalog.to_timestamp($1::int8 / 1000000.0)
 ORDER BY p.key, p.namespace, p.slot
 LIMIT 1000
