-- Renews one lease: the simple form of renew.sql.
--
-- Promises: as renew.sql; returns no row if renew.sql has to be run.
-- Index: the primary key of lease; no indexed column changes, so the update is HOT.
-- Race: as in renew.sql.
UPDATE lockapi.lease AS l
   SET renewed_at = pg_catalog.clock_timestamp(),
       expires_at = pg_catalog.clock_timestamp() + $5::int8 * interval '1 microsecond'
 WHERE l.key = $2::text AND l.namespace = $1::text AND l.slot = $3::int8 AND l.fence = $4::int8
   AND l.released_at IS NULL
   AND l.expires_at > pg_catalog.clock_timestamp()
RETURNING 1::int8 AS n, true AS renewed
