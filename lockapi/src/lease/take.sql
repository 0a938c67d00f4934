-- Takes slots of keys for semaphores; one request can take several at once.
--
-- Promises: a slot is given to at most one acquisition at a time, decided by the server's clock on the locked
-- row. An acquisition gets all the slots that it requests, or none. Requests for one key are served in their
-- order in the batch, up to the first one for which there are not enough slots. The statement never waits for
-- a row. A request repeated with the same acquisition number gets the same token and slots again, as long as
-- it has all of them; otherwise those that it has are free, because nobody works under them. In an epoch that
-- is not the first, a slot that nobody has renewed in it, or that has no row, is given later, as in acquire.sql.
-- Index: the primary key of lease: the slots of a key, of which there are at most 1,024; that of epoch.
-- Race: two acquisitions of an ended slot conflict at FOR UPDATE, where the second skips the row. A
-- repetition that runs before the first run has committed does not see it, skips its rows, and may get other
-- slots. A slot that has no row yet is not given: its row is created, free, and the answer requests a retry.
-- The reason is that rows created concurrently conflict at ON CONFLICT, and an acquisition of fewer slots
-- than requested must never have to be undone.
WITH epoch AS MATERIALIZED (
    SELECT e.begun_at, e.waits_from FROM lockapi.epoch AS e WHERE e.one
), want AS MATERIALIZED (
    SELECT w.*
      FROM unnest($1::text[], $2::text[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int8[],
                  $8::text[], $9::text[])
           WITH ORDINALITY AS w (namespace, key, permits, count, acquisition, ttl, hold, owner, data, n)
), had AS MATERIALIZED (
    SELECT w.n, w.count, l.namespace, l.key, l.slot, l.fence
      FROM want AS w
     CROSS JOIN LATERAL (
           SELECT l.namespace, l.key, l.slot, l.fence
             FROM lockapi.lease AS l
            WHERE l.namespace = w.namespace AND l.key = w.key AND l.slot BETWEEN 1 AND w.permits
              AND l.acquisition = w.acquisition AND l.released_at IS NULL
              AND l.expires_at > pg_catalog.clock_timestamp()
           OFFSET 0
              FOR UPDATE OF l SKIP LOCKED) AS l
), again AS MATERIALIZED (
    SELECT h.n, min(h.fence) AS fence, array_agg(h.slot::int8 ORDER BY h.slot) AS slots
      FROM had AS h
     GROUP BY h.n, h.count
    HAVING count(*) = h.count AND min(h.fence) = max(h.fence)
), prolonged AS (
    UPDATE lockapi.lease AS l
       SET renewed_at = pg_catalog.clock_timestamp(),
           held_until = pg_catalog.clock_timestamp() + nullif(w.hold, 0) * interval '1 microsecond',
           expires_at = pg_catalog.clock_timestamp() + w.ttl * interval '1 microsecond'
      FROM again AS a
      JOIN want AS w ON w.n = a.n
      JOIN had AS h ON h.n = a.n
     WHERE l.namespace = h.namespace AND l.key = h.key AND l.slot = h.slot
       AND l.namespace = ($1::text[])[1] AND l.key = ANY ($2::text[])
), fresh AS MATERIALIZED (
    SELECT w.*, (sum(w.count) OVER (PARTITION BY w.namespace, w.key ORDER BY w.n))::int8 AS upto
      FROM want AS w
     WHERE NOT EXISTS (SELECT FROM again AS a WHERE a.n = w.n)
), line AS MATERIALIZED (
    SELECT w.namespace, w.key, max(w.permits) AS permits, max(w.upto) AS wanted, max(w.ttl) AS ttl
      FROM fresh AS w
     GROUP BY w.namespace, w.key
     ORDER BY w.namespace, w.key
), free AS MATERIALIZED (
    SELECT f.namespace, f.key, f.slot,
           row_number() OVER (PARTITION BY f.namespace, f.key ORDER BY f.slot) AS nth
      FROM line AS k
     CROSS JOIN LATERAL (
           SELECT l.namespace, l.key, l.slot
             FROM lockapi.lease AS l
            WHERE l.namespace = k.namespace AND l.key = k.key AND l.slot BETWEEN 1 AND k.permits
              AND (greatest(CASE WHEN l.released_at IS NULL OR l.held_until IS NOT NULL
                                 THEN l.expires_at ELSE 'epoch' END,
                            CASE WHEN greatest(l.renewed_at, l.released_at) <= (SELECT e.begun_at FROM epoch AS e)
                                   OR greatest(l.renewed_at, l.released_at) > pg_catalog.clock_timestamp()
                                 THEN (SELECT e.waits_from FROM epoch AS e)
                                      + greatest(k.ttl * interval '1 microsecond',
                                                 CASE WHEN l.released_at IS NULL
                                                      THEN l.expires_at - l.renewed_at END) END)
                       <= pg_catalog.clock_timestamp()
                   OR (l.released_at IS NULL AND l.expires_at > pg_catalog.clock_timestamp()
                       AND l.acquisition IN (SELECT w.acquisition FROM fresh AS w)))
            ORDER BY l.slot
            LIMIT k.wanted
              FOR UPDATE OF l SKIP LOCKED) AS f
), found AS MATERIALIZED (
    SELECT k.namespace, k.key, k.permits, k.wanted, k.ttl, count(f.slot) AS slots
      FROM line AS k
      LEFT JOIN free AS f ON f.namespace = k.namespace AND f.key = k.key
     GROUP BY k.namespace, k.key, k.permits, k.wanted, k.ttl
), given AS MATERIALIZED (
    SELECT w.*, pg_catalog.nextval('lockapi.fence_seq') << 10 AS fence
      FROM fresh AS w
      JOIN found AS k ON k.namespace = w.namespace AND k.key = w.key
     WHERE w.upto <= k.slots
       AND NOT EXISTS (SELECT FROM free AS f
                        WHERE f.namespace = w.namespace AND f.key = w.key AND f.slot > w.permits
                          AND f.nth > w.upto - w.count AND f.nth <= w.upto)
), taken AS (
    UPDATE lockapi.lease AS l
       SET fence = g.fence,
           acquisition = g.acquisition,
           owner = g.owner,
           data = g.data,
           acquired_at = pg_catalog.clock_timestamp(),
           renewed_at = pg_catalog.clock_timestamp(),
           held_until = pg_catalog.clock_timestamp() + nullif(g.hold, 0) * interval '1 microsecond',
           expires_at = pg_catalog.clock_timestamp() + g.ttl * interval '1 microsecond',
           released_at = NULL
      FROM given AS g
      JOIN free AS f ON f.namespace = g.namespace AND f.key = g.key
                    AND f.nth > g.upto - g.count AND f.nth <= g.upto
     WHERE l.namespace = f.namespace AND l.key = f.key AND l.slot = f.slot
       AND l.namespace = ($1::text[])[1] AND l.key = ANY ($2::text[])
    RETURNING g.n, l.slot, l.fence
), missing AS MATERIALIZED (
    SELECT k.namespace, k.key, s.slot
      FROM found AS k
     CROSS JOIN LATERAL (
           SELECT s.slot
             FROM generate_series(1, k.permits) AS s (slot)
            WHERE NOT EXISTS (SELECT FROM lockapi.lease AS o
                               WHERE o.namespace = k.namespace AND o.key = k.key AND o.slot = s.slot OFFSET 0)
            ORDER BY s.slot
            LIMIT k.wanted - k.slots) AS s
     WHERE k.slots < k.wanted
       AND (SELECT e.waits_from FROM epoch AS e) + k.ttl * interval '1 microsecond' <= pg_catalog.clock_timestamp()
), created AS (
    INSERT INTO lockapi.lease (namespace, key, slot, fence, acquisition, owner, data,
                               acquired_at, renewed_at, expires_at, released_at)
    SELECT m.namespace, m.key, m.slot, 0, 0, '', '', t.now, 'epoch', t.now, 'epoch'
      FROM missing AS m
     CROSS JOIN (SELECT pg_catalog.clock_timestamp() AS now) AS t
     ORDER BY m.namespace, m.key, m.slot
    ON CONFLICT DO NOTHING
)
SELECT w.n, coalesce(a.fence, t.fence) AS fence, coalesce(a.slots, t.slots) AS slots,
       EXISTS (SELECT FROM missing AS m WHERE m.namespace = w.namespace AND m.key = w.key) AS again,
       CASE WHEN a.n IS NULL AND t.n IS NULL THEN coalesce((
           SELECT greatest((extract(epoch FROM min(l.ends_at) - pg_catalog.clock_timestamp()) * 1000000)::int8, 0)
             FROM (SELECT greatest(CASE WHEN l.released_at IS NULL OR l.held_until IS NOT NULL
                                        THEN l.expires_at ELSE 'epoch' END,
                                   CASE WHEN greatest(l.renewed_at, l.released_at) <= (SELECT e.begun_at FROM epoch AS e)
                                          OR greatest(l.renewed_at, l.released_at) > pg_catalog.clock_timestamp()
                                        THEN (SELECT e.waits_from FROM epoch AS e)
                                             + greatest(w.ttl * interval '1 microsecond',
                                                        CASE WHEN l.released_at IS NULL
                                                             THEN l.expires_at - l.renewed_at END) END) AS ends_at
                     FROM lockapi.lease AS l
                    WHERE l.namespace = w.namespace AND l.key = w.key AND l.slot BETWEEN 1 AND w.permits
                    UNION ALL
                   SELECT e.waits_from + w.ttl * interval '1 microsecond'
                     FROM epoch AS e
                    WHERE e.waits_from + w.ttl * interval '1 microsecond' > pg_catalog.clock_timestamp()
                      AND (SELECT count(*) FROM lockapi.lease AS o
                            WHERE o.namespace = w.namespace AND o.key = w.key AND o.slot BETWEEN 1 AND w.permits) < w.permits) AS l
            WHERE l.ends_at > pg_catalog.clock_timestamp()), 0)
       END AS held_for
  FROM want AS w
  LEFT JOIN again AS a ON a.n = w.n
  LEFT JOIN (SELECT x.n, x.fence, array_agg(x.slot::int8 ORDER BY x.slot) AS slots
               FROM taken AS x
              GROUP BY x.n, x.fence) AS t ON t.n = w.n
