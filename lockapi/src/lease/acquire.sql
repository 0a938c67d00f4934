-- Acquires leases; of several requests for one slot in the batch, the first takes effect.
--
-- Promises: a slot is given to at most one acquisition at a time, decided by the server's clock on the locked
-- row. A request repeated with the same acquisition number gets the same token again. The statement never
-- waits for a row that a transaction has checked in. In an epoch that is not the first, a slot that nobody has
-- renewed in it may have a holder whom the server has not heard of: it is given when as long a time to live as
-- was asked for, or as its row shows, has passed since the epoch began. One that was released without a minimum
-- hold is free whatever the clock shows; a time that is still to come is of before the clock was set back, perhaps
-- on an earlier server, and counts as one of an earlier epoch.
-- Index: the primary keys of lease and epoch.
-- Race: two acquisitions of an ended lease conflict at FOR UPDATE, where the second skips the row; two first
-- acquisitions conflict at ON CONFLICT DO NOTHING. A row with a transaction's check-in (FOR KEY SHARE) is
-- skipped as well, so no successor exists before that transaction ends. The token for a taken row is drawn
-- while the row is locked, so it is larger than the stored one.
WITH epoch AS MATERIALIZED (
    SELECT e.begun_at, e.waits_from FROM lockapi.epoch AS e WHERE e.one
), want AS MATERIALIZED (
    SELECT DISTINCT ON (w.namespace, w.key, w.slot) w.*
      FROM unnest($1::text[], $2::text[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::text[], $8::text[])
           WITH ORDINALITY AS w (namespace, key, slot, acquisition, ttl, hold, owner, data, n)
     ORDER BY w.namespace, w.key, w.slot, w.n
), free AS MATERIALIZED (
    SELECT w.n
      FROM want AS w
      JOIN lockapi.lease AS l ON l.namespace = w.namespace AND l.key = w.key AND l.slot = w.slot
                           AND l.namespace = ($1::text[])[1] AND l.key = ANY (ARRAY(SELECT x.key FROM want AS x))
     WHERE greatest(CASE WHEN l.released_at IS NULL OR l.held_until IS NOT NULL
                         THEN l.expires_at ELSE 'epoch' END,
                    CASE WHEN greatest(l.renewed_at, l.released_at) <= (SELECT e.begun_at FROM epoch AS e)
                           OR greatest(l.renewed_at, l.released_at) > pg_catalog.clock_timestamp()
                         THEN (SELECT e.waits_from FROM epoch AS e)
                              + greatest(w.ttl * interval '1 microsecond',
                                         CASE WHEN l.released_at IS NULL THEN l.expires_at - l.renewed_at END) END)
               <= pg_catalog.clock_timestamp()
        OR (l.acquisition = w.acquisition AND l.released_at IS NULL AND l.expires_at > pg_catalog.clock_timestamp())
     ORDER BY l.namespace, l.key, l.slot
       FOR UPDATE OF l SKIP LOCKED
), taken AS (
    UPDATE lockapi.lease AS l
       SET fence = CASE WHEN l.acquisition = w.acquisition AND l.released_at IS NULL
                             AND l.expires_at > pg_catalog.clock_timestamp()
                        THEN l.fence
                        ELSE pg_catalog.nextval('lockapi.fence_seq') << 10 END,
           acquisition = w.acquisition,
           owner = w.owner,
           data = w.data,
           acquired_at = pg_catalog.clock_timestamp(),
           renewed_at = pg_catalog.clock_timestamp(),
           held_until = pg_catalog.clock_timestamp() + nullif(w.hold, 0) * interval '1 microsecond',
           expires_at = pg_catalog.clock_timestamp() + w.ttl * interval '1 microsecond',
           released_at = NULL
      FROM want AS w
     WHERE w.n IN (SELECT f.n FROM free AS f)
       AND l.namespace = w.namespace AND l.key = w.key AND l.slot = w.slot
       AND l.namespace = ($1::text[])[1] AND l.key = ANY (ARRAY(SELECT x.key FROM want AS x))
    RETURNING w.n, l.fence
), created AS (
    INSERT INTO lockapi.lease AS l (namespace, key, slot, fence, acquisition, owner, data,
                                    acquired_at, renewed_at, held_until, expires_at)
    SELECT w.namespace, w.key, w.slot, pg_catalog.nextval('lockapi.fence_seq') << 10, w.acquisition, w.owner, w.data,
           pg_catalog.clock_timestamp(), pg_catalog.clock_timestamp(),
           pg_catalog.clock_timestamp() + nullif(w.hold, 0) * interval '1 microsecond',
           pg_catalog.clock_timestamp() + w.ttl * interval '1 microsecond'
      FROM want AS w
     WHERE NOT EXISTS (SELECT FROM lockapi.lease AS o
                        WHERE o.namespace = w.namespace AND o.key = w.key AND o.slot = w.slot
                          AND o.namespace = ($1::text[])[1] AND o.key = ANY (ARRAY(SELECT x.key FROM want AS x)))
       AND (SELECT e.waits_from FROM epoch AS e) + w.ttl * interval '1 microsecond' <= pg_catalog.clock_timestamp()
     ORDER BY w.namespace, w.key, w.slot
    ON CONFLICT DO NOTHING
    RETURNING l.acquisition, l.fence
)
SELECT w.n,
       coalesce(t.fence, c.fence) AS fence,
       greatest((extract(epoch FROM greatest(
           CASE WHEN l.released_at IS NULL OR l.held_until IS NOT NULL
                THEN l.expires_at ELSE 'epoch' END,
           CASE WHEN l.slot IS NULL OR greatest(l.renewed_at, l.released_at) <= (SELECT e.begun_at FROM epoch AS e)
                  OR greatest(l.renewed_at, l.released_at) > pg_catalog.clock_timestamp()
                THEN (SELECT e.waits_from FROM epoch AS e)
                     + greatest(w.ttl * interval '1 microsecond',
                                CASE WHEN l.released_at IS NULL THEN l.expires_at - l.renewed_at END) END)
           - pg_catalog.clock_timestamp()) * 1000000)::int8, 0) AS held_for
  FROM want AS w
  LEFT JOIN taken AS t ON t.n = w.n
  LEFT JOIN created AS c ON c.acquisition = w.acquisition
  LEFT JOIN lockapi.lease AS l ON l.namespace = w.namespace AND l.key = w.key AND l.slot = w.slot
                              AND l.namespace = ($1::text[])[1] AND l.key = ANY (ARRAY(SELECT x.key FROM want AS x))
