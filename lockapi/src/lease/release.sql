-- Releases leases.
--
-- Promises: only the holder with this token is released. The lease becomes free at once, or when its minimum
-- hold ends. A release that is repeated because its answer was lost returns "released". In an epoch that is not
-- the first, a lease that its holder has not renewed may have been released, and acquired by another, without the
-- server's knowledge: it counts as released when the epoch began, so that the next one waits, as acquire.sql says.
-- A minimum hold that has ended is removed: the row is free then, also when the clock is set back.
-- Index: the primary keys of lease and epoch; no indexed column changes, so the update is HOT.
-- Race: as in renew.sql. A row that was released before is updated as well, to the same values: a first
-- request may end while its repetition waits for the row, and the snapshot does not show that.
WITH want AS MATERIALIZED (
    SELECT w.*
      FROM unnest($1::text[], $2::text[], $3::int8[], $4::int8[])
           WITH ORDINALITY AS w (namespace, key, slot, fence, n)
     ORDER BY w.namespace, w.key, w.slot
), released AS (
    UPDATE lockapi.lease AS l
       SET released_at = coalesce(l.released_at,
                                CASE WHEN l.renewed_at > (SELECT e.begun_at FROM lockapi.epoch AS e WHERE e.one)
                                     THEN pg_catalog.clock_timestamp()
                                     ELSE (SELECT e.begun_at FROM lockapi.epoch AS e WHERE e.one) END),
           held_until = CASE WHEN l.released_at IS NOT NULL OR l.held_until > pg_catalog.clock_timestamp()
                             THEN l.held_until END,
           expires_at = CASE WHEN l.released_at IS NULL
                             THEN greatest(pg_catalog.clock_timestamp(), l.held_until)
                             ELSE l.expires_at END
      FROM want AS w
     WHERE l.namespace = w.namespace AND l.key = w.key AND l.slot = w.slot AND l.fence = w.fence
       AND l.namespace = ($1::text[])[1] AND l.key = ANY (ARRAY(SELECT x.key FROM want AS x))
       AND (l.released_at IS NOT NULL OR l.expires_at > pg_catalog.clock_timestamp())
    RETURNING l.slot, l.fence
)
SELECT w.n, r.fence IS NOT NULL AS released
  FROM want AS w
  LEFT JOIN released AS r ON r.fence = w.fence AND r.slot = w.slot
