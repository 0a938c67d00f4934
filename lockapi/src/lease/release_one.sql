-- Releases one lease: the simple form of release.sql.
--
-- Promises: as release.sql; returns no row if release.sql has to be run.
-- Index: the primary keys of lease and epoch; no indexed column changes, so the update is HOT.
-- Race: as in release.sql.
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
 WHERE l.key = $2::text AND l.namespace = $1::text AND l.slot = $3::int8 AND l.fence = $4::int8
   AND (l.released_at IS NOT NULL OR l.expires_at > pg_catalog.clock_timestamp())
RETURNING 1::int8 AS n, true AS released
