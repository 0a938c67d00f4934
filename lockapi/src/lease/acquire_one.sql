-- Acquires one lease: the simple form of acquire.sql.
--
-- Promises: as acquire.sql; returns no row if a row has to be created.
-- Index: the primary keys of lease and epoch.
-- Race: as in acquire.sql.
WITH epoch AS MATERIALIZED (
    SELECT e.begun_at, e.waits_from FROM lockapi.epoch AS e WHERE e.one
), free AS MATERIALIZED (
    SELECT l.slot
      FROM lockapi.lease AS l
     WHERE l.key = $2::text AND l.namespace = $1::text AND l.slot = $3::int8
       AND (greatest(CASE WHEN l.released_at IS NULL OR l.held_until IS NOT NULL
                          THEN l.expires_at ELSE 'epoch' END,
                     CASE WHEN greatest(l.renewed_at, l.released_at) <= (SELECT e.begun_at FROM epoch AS e)
                            OR greatest(l.renewed_at, l.released_at) > pg_catalog.clock_timestamp()
                          THEN (SELECT e.waits_from FROM epoch AS e)
                               + greatest($5::int8 * interval '1 microsecond',
                                          CASE WHEN l.released_at IS NULL THEN l.expires_at - l.renewed_at END) END)
                <= pg_catalog.clock_timestamp()
            OR (l.acquisition = $4::int8 AND l.released_at IS NULL AND l.expires_at > pg_catalog.clock_timestamp()))
       FOR UPDATE OF l SKIP LOCKED
), taken AS (
    UPDATE lockapi.lease AS l
       SET fence = CASE WHEN l.acquisition = $4::int8 AND l.released_at IS NULL
                             AND l.expires_at > pg_catalog.clock_timestamp()
                        THEN l.fence
                        ELSE pg_catalog.nextval('lockapi.fence_seq') << 10 END,
           acquisition = $4::int8,
           owner = $7::text,
           data = $8::text,
           acquired_at = pg_catalog.clock_timestamp(),
           renewed_at = pg_catalog.clock_timestamp(),
           held_until = pg_catalog.clock_timestamp() + nullif($6::int8, 0) * interval '1 microsecond',
           expires_at = pg_catalog.clock_timestamp() + $5::int8 * interval '1 microsecond',
           released_at = NULL
     WHERE l.key = $2::text AND l.namespace = $1::text AND l.slot = (SELECT f.slot FROM free AS f)
    RETURNING l.fence
), held AS (
    SELECT greatest((extract(epoch FROM greatest(
               CASE WHEN l.released_at IS NULL OR l.held_until IS NOT NULL
                    THEN l.expires_at ELSE 'epoch' END,
               CASE WHEN greatest(l.renewed_at, l.released_at) <= (SELECT e.begun_at FROM epoch AS e)
                      OR greatest(l.renewed_at, l.released_at) > pg_catalog.clock_timestamp()
                    THEN (SELECT e.waits_from FROM epoch AS e)
                         + greatest($5::int8 * interval '1 microsecond',
                                    CASE WHEN l.released_at IS NULL THEN l.expires_at - l.renewed_at END) END)
               - pg_catalog.clock_timestamp()) * 1000000)::int8, 0) AS held_for
      FROM lockapi.lease AS l
     WHERE l.key = $2::text AND l.namespace = $1::text AND l.slot = $3::int8
       AND NOT EXISTS (SELECT FROM taken)
)
SELECT 1::int8 AS n, t.fence, 0::int8 AS held_for FROM taken AS t
 UNION ALL
SELECT 1, NULL, h.held_for FROM held AS h
