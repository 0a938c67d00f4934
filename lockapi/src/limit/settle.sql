-- Ends reservations: the one of each request, and every one of its key that has expired.
--
-- Promises: a reservation ends once. Of the one that is asked for, $4 is given back, of the expired
-- ones everything; less what has flowed back since they were taken. The outcome is 1 when the
-- reservation was there, 0 when it was not, -1 for "ask again", which is told to all but the first
-- request for a key.
-- Index: the primary key of rate_limit; no indexed column changes, so the update is HOT.
-- Race: rows are locked in the order of their keys, and the clock is read after that.
WITH want AS MATERIALIZED (
    SELECT DISTINCT ON (w.namespace, w.key) w.*
      FROM unnest($1::text[], $2::text[], $3::int8[], $4::int8[])
           WITH ORDINALITY AS w (namespace, key, id, price, n)
     ORDER BY w.namespace, w.key, w.n
), locked AS MATERIALIZED (
    SELECT w.n, w.namespace, w.key, w.id, w.price, l.reserved, l.started
      FROM want AS w
      JOIN lockapi.rate_limit AS l ON l.namespace = w.namespace AND l.key = w.key
     ORDER BY w.namespace, w.key
       FOR UPDATE OF l
), timed AS MATERIALIZED (
    SELECT k.*, c.now
      FROM locked AS k
      CROSS JOIN (SELECT lockapi.clock() AS now FROM (SELECT count(*) FROM locked) AS l OFFSET 0) AS c
), parts AS MATERIALIZED (
    SELECT t.n, i.i, t.now, t.started, p.*, p.id = t.id AS asked,
           p.id = t.id OR p.expires <= t.now AS ended,
           CASE WHEN p.id = t.id AND p.expires > t.now THEN least(t.price, p.price)
                ELSE p.price END AS back
      FROM timed AS t
      CROSS JOIN LATERAL pg_catalog.generate_series(1, coalesce(cardinality(t.reserved), 0), 5) AS i (i)
      CROSS JOIN LATERAL (
               SELECT t.reserved[i.i] AS id, t.reserved[i.i + 1] AS at, t.reserved[i.i + 2] AS price,
                      t.reserved[i.i + 3] AS length, t.reserved[i.i + 4] AS expires) AS p
), summed AS MATERIALIZED (
    SELECT t.n, t.namespace, t.key,
           coalesce((sum(greatest(0, p.back - greatest(0, t.now - p.at)))
               FILTER (WHERE p.ended AND p.length = 0))::int8, 0) AS flown,
           coalesce((sum(p.back)
               FILTER (WHERE p.ended AND p.length > 0 AND p.at >= t.started))::int8, 0) AS used,
           coalesce((sum(p.back)
               FILTER (WHERE p.ended AND p.length > 0 AND p.at < t.started
                         AND p.at >= t.started - p.length))::int8, 0) AS before,
           min(p.expires) FILTER (WHERE NOT p.ended) AS due,
           coalesce(bool_or(p.asked AND p.expires > t.now), false) AS found
      FROM timed AS t
      LEFT JOIN parts AS p ON p.n = t.n
     GROUP BY t.n, t.namespace, t.key
), settled AS (
    UPDATE lockapi.rate_limit AS l
       SET tat = l.tat - s.flown,
           used = greatest(0, l.used - s.used),
           before = greatest(0, l.before - s.before),
           due = s.due,
           reserved = (SELECT pg_catalog.array_agg(v.v ORDER BY p.i, v.j)
                         FROM parts AS p
                         CROSS JOIN LATERAL unnest(ARRAY[p.id, p.at, p.price, p.length, p.expires])
                              WITH ORDINALITY AS v (v, j)
                        WHERE p.n = s.n AND NOT p.ended)
      FROM summed AS s
     WHERE l.namespace = s.namespace AND l.key = s.key
       AND EXISTS (SELECT FROM parts AS p WHERE p.n = s.n AND p.ended)
    RETURNING s.n
)
SELECT a.n,
       CASE WHEN w.n IS NULL THEN -1
            WHEN s.found AND (SELECT pg_catalog.count(*) FROM settled) >= 0 THEN 1
            ELSE 0 END::int8 AS outcome
  FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS a (namespace, key, n)
  LEFT JOIN want AS w ON w.n = a.n
  LEFT JOIN summed AS s ON s.n = a.n
