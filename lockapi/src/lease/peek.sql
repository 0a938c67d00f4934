-- Reads who holds leases.
--
-- Promises: one row for each slot that nobody could acquire now, by the server's clock; the last column is
-- true for a slot that was released but stays unavailable to others until its minimum hold ends.
-- Index: the primary key of lease. Race: none, it only reads; the answer may be old on arrival.
SELECT w.n, l.owner, l.data, l.fence,
       (extract(epoch FROM pg_catalog.clock_timestamp() - l.acquired_at) * 1000000)::int8 AS age,
       (extract(epoch FROM l.expires_at - pg_catalog.clock_timestamp()) * 1000000)::int8 AS remaining,
       l.released_at IS NOT NULL AS released
  FROM unnest($1::text[], $2::text[], $3::int8[]) WITH ORDINALITY AS w (namespace, key, slot, n)
  JOIN lockapi.lease AS l ON l.namespace = w.namespace AND l.key = w.key AND l.slot = w.slot
                         AND l.namespace = ($1::text[])[1] AND l.key = ANY ($2::text[])
 WHERE l.expires_at > pg_catalog.clock_timestamp() AND (l.released_at IS NULL OR l.held_until IS NOT NULL)
