-- Ends reservations: the one of each request, and every one of its key that has expired.
--
-- Promises: a reservation ends once. Of the one that is asked for, $4 is given back, of the expired
-- ones everything; less what has flowed back since they were taken. The outcome is 1 when the
-- reservation was there, 0 when it was not, -1 for "ask again", which is told to all but the first
-- request for a key.
-- Index: the primary key of rate_limit; no indexed column changes, so the update is HOT.
-- Race: rows are locked in the order of their keys, and the clock is read after that.
WITH want AS MATERIALIZED (
    SELECT DISTINCT ON (w.namespace COLLATE pg_catalog."C", w.key COLLATE pg_catalog."C") w.*
      FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]), pg_catalog.unnest($2::pg_catalog.text[]),
                      pg_catalog.unnest($3::pg_catalog.int8[]), pg_catalog.unnest($4::pg_catalog.int8[]))
           WITH ORDINALITY AS w (namespace, key, id, price, n)
     ORDER BY w.namespace COLLATE pg_catalog."C", w.key COLLATE pg_catalog."C", w.n
), locked AS MATERIALIZED (
    SELECT w.n, w.namespace, w.key, w.id, w.price, l.reserved, l.started
      FROM want AS w
      JOIN lockapi.rate_limit AS l
        ON l.namespace OPERATOR(pg_catalog.=) w.namespace AND l.key OPERATOR(pg_catalog.=) w.key
       AND l.namespace OPERATOR(pg_catalog.=) ($1::pg_catalog.text[])[1] AND l.key OPERATOR(pg_catalog.=) ANY ($2::pg_catalog.text[])
     ORDER BY l.namespace, l.key
       FOR UPDATE OF l
), tick AS MATERIALIZED (
    -- Once, and when all rows are locked.
    SELECT lockapi.clock() AS now FROM (SELECT pg_catalog.count(*) FROM locked) AS l OFFSET 0
), timed AS MATERIALIZED (
    SELECT k.*, c.now
      FROM locked AS k
      CROSS JOIN tick AS c
), parts AS MATERIALIZED (
    SELECT t.n, i.i, t.now, t.started, p.*, p.id OPERATOR(pg_catalog.=) t.id AS asked,
           p.id OPERATOR(pg_catalog.=) t.id OR p.expires OPERATOR(pg_catalog.<=) t.now AS ended,
           CASE WHEN p.id OPERATOR(pg_catalog.=) t.id AND p.expires OPERATOR(pg_catalog.>) t.now
                THEN least(t.price, p.price)
                ELSE p.price END AS back
      FROM timed AS t
      CROSS JOIN LATERAL pg_catalog.generate_series(1, coalesce(pg_catalog.cardinality(t.reserved), 0), 5) AS i (i)
      CROSS JOIN LATERAL (
               SELECT t.reserved[i.i] AS id, t.reserved[i.i OPERATOR(pg_catalog.+) 1] AS at,
                      t.reserved[i.i OPERATOR(pg_catalog.+) 2] AS price,
                      t.reserved[i.i OPERATOR(pg_catalog.+) 3] AS length,
                      t.reserved[i.i OPERATOR(pg_catalog.+) 4] AS expires) AS p
), summed AS MATERIALIZED (
    SELECT t.n, t.namespace, t.key,
           coalesce((pg_catalog.sum(greatest(0, p.back OPERATOR(pg_catalog.-)
                                                greatest(0, t.now OPERATOR(pg_catalog.-) p.at)))
               FILTER (WHERE p.ended AND p.length OPERATOR(pg_catalog.=) 0))::pg_catalog.int8, 0) AS flown,
           coalesce((pg_catalog.sum(p.back)
               FILTER (WHERE p.ended AND p.length OPERATOR(pg_catalog.>) 0
                         AND p.at OPERATOR(pg_catalog.>=) t.started))::pg_catalog.int8, 0) AS used,
           coalesce((pg_catalog.sum(p.back)
               FILTER (WHERE p.ended AND p.length OPERATOR(pg_catalog.>) 0 AND p.at OPERATOR(pg_catalog.<) t.started
                         AND p.at OPERATOR(pg_catalog.>=) (t.started OPERATOR(pg_catalog.-) p.length)))::pg_catalog.int8,
                    0) AS before,
           pg_catalog.min(p.expires) FILTER (WHERE NOT p.ended) AS due,
           coalesce(pg_catalog.bool_or(p.asked AND p.expires OPERATOR(pg_catalog.>) t.now), false) AS found
      FROM timed AS t
      LEFT JOIN parts AS p ON p.n OPERATOR(pg_catalog.=) t.n
     GROUP BY t.n, t.namespace, t.key
), settled AS (
    UPDATE lockapi.rate_limit AS l
       SET tat = l.tat OPERATOR(pg_catalog.-) s.flown,
           used = greatest(0, l.used OPERATOR(pg_catalog.-) s.used),
           before = greatest(0, l.before OPERATOR(pg_catalog.-) s.before),
           due = s.due,
           reserved = (SELECT pg_catalog.array_agg(v.v ORDER BY p.i, v.j)
                         FROM parts AS p
                         CROSS JOIN LATERAL ROWS FROM (
                              pg_catalog.unnest(ARRAY[p.id, p.at, p.price, p.length, p.expires]))
                              WITH ORDINALITY AS v (v, j)
                        WHERE p.n OPERATOR(pg_catalog.=) s.n AND NOT p.ended)
      FROM summed AS s
     WHERE l.namespace OPERATOR(pg_catalog.=) s.namespace AND l.key OPERATOR(pg_catalog.=) s.key
       AND l.namespace OPERATOR(pg_catalog.=) ($1::pg_catalog.text[])[1] AND l.key OPERATOR(pg_catalog.=) ANY ($2::pg_catalog.text[])
       AND EXISTS (SELECT FROM parts AS p WHERE p.n OPERATOR(pg_catalog.=) s.n AND p.ended)
    RETURNING s.n
)
SELECT a.n,
       CASE WHEN w.n IS NULL THEN -1
            WHEN s.found AND (SELECT pg_catalog.count(*) FROM settled) OPERATOR(pg_catalog.>=) 0 THEN 1
            ELSE 0 END::pg_catalog.int8 AS outcome
  FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]), pg_catalog.unnest($2::pg_catalog.text[]))
       WITH ORDINALITY AS a (namespace, key, n)
  LEFT JOIN want AS w ON w.n OPERATOR(pg_catalog.=) a.n
  LEFT JOIN summed AS s ON s.n OPERATOR(pg_catalog.=) a.n
