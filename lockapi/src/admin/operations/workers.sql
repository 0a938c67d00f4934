-- Lists who makes ids with which worker number in the namespace $1.
--
-- Promises: at most $2 of the numbers that are held now, ordered by name and number, among the first ten times
-- as many.
-- Index: the primary key of id_worker. Race: none, it only reads; the answer may be old on arrival.
WITH part AS MATERIALIZED (
    SELECT w.name, w.worker, w.owner, w.token, w.claimed_at, w.expires_at
      FROM lockapi.id_worker AS w
     WHERE w.namespace = $1::text
     ORDER BY w.namespace, w.name, w.worker
     LIMIT 10 * $2::int8
)
SELECT p.name, p.worker, p.owner,
       (extract(epoch FROM pg_catalog.clock_timestamp() - p.claimed_at) * 1000000)::int8 AS held_for,
       (extract(epoch FROM p.expires_at - pg_catalog.clock_timestamp()) * 1000000)::int8 AS remaining
  FROM part AS p
 WHERE p.token <> 0 AND p.expires_at > pg_catalog.clock_timestamp()
 ORDER BY p.name, p.worker
 LIMIT $2::int8
