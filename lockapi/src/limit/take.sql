-- Takes permits with the generic cell rate algorithm, for each key as many times as they fit.
--
-- Promises: no more is taken than fits at the server's time, checked on the latest version of the row. A
-- refused request writes nothing and locks nothing. A smaller quota never shortens what a larger one took.
-- Rows are updated in the order of their keys, and created after that in the same order.
-- The outcome is how many times it was taken, 0 for refused, -1 for "retry", -3 for a row that has to be put in
-- order first: reservations have expired, or it was written at a time in the future, because the clock was set
-- back.
-- Index: the primary key of rate_limit; no indexed column changes, so the update is HOT.
-- Race: an update that waited for another checks the new version of its row, and reads the clock again. If it
-- is refused then, the snapshot shows a row that still had room, and the request has to be retried. The same
-- holds for the loser of two that create a row. With $6, the transaction commits asynchronously.
WITH want AS MATERIALIZED (
    SELECT w.*
      FROM unnest($1::text[], $2::text[], $3::int8[], $4::int8[], $5::int8[])
           WITH ORDINALITY AS w (namespace, key, price, depth, times, n)
     WHERE (SELECT CASE WHEN $6::bool
                        THEN pg_catalog.set_config('synchronous_commit', 'off', true) <> ''
                        ELSE true END)
     ORDER BY w.namespace COLLATE "C", w.key COLLATE "C"
), took AS (
    UPDATE lockapi.rate_limit AS l
       SET (tat, taken, at) = (
               SELECT f.now + f.debt + f.fits * w.price, f.fits, f.now
                 FROM (SELECT b.now, b.debt, greatest(0, least(w.times, (w.depth - b.debt) / w.price)) AS fits
                         FROM (SELECT c.now, greatest(0, l.tat - c.now) AS debt
                                 FROM (SELECT greatest(l.at, lockapi.clock()) AS now OFFSET 0) AS c
                               OFFSET 0) AS b
                       OFFSET 0) AS f)
      FROM want AS w
     WHERE l.namespace = w.namespace AND l.key = w.key
       AND l.namespace = ($1::text[])[1] AND l.key = ANY (ARRAY(SELECT x.key FROM want AS x))
       AND l.tat - lockapi.clock() <= w.depth - w.price
       AND l.at <= lockapi.clock()
       AND (l.blocked_until IS NULL OR l.blocked_until <= lockapi.clock())
       AND (l.due IS NULL OR l.due > lockapi.clock())
    RETURNING w.n, l.taken, l.tat, l.at
), rest AS MATERIALIZED (
    SELECT w.n, w.namespace, w.key, w.price, w.depth, least(w.times, w.depth / w.price) AS fits,
           l.tat, l.at, coalesce(l.blocked_until, 0) AS blocked_until,
           coalesce(l.due, 9223372036854775807) AS due, lockapi.clock() AS now
      FROM want AS w
      LEFT JOIN took AS t ON t.n = w.n
      LEFT JOIN LATERAL (
               SELECT r.tat, r.at, r.blocked_until, r.due
                 FROM lockapi.rate_limit AS r
                WHERE t.n IS NULL AND r.namespace = w.namespace AND r.key = w.key
               OFFSET 0) AS l ON true
     WHERE t.n IS NULL
), made AS (
    INSERT INTO lockapi.rate_limit (namespace, key, tat, taken, at)
    SELECT r.namespace, r.key, r.now + r.fits * r.price, r.fits, r.now
      FROM rest AS r
     WHERE r.tat IS NULL
     ORDER BY r.namespace COLLATE "C", r.key COLLATE "C"
    ON CONFLICT (namespace, key) DO NOTHING
    RETURNING namespace, key, taken, tat, at
)
SELECT t.n, t.taken AS outcome, t.tat, 0::int8 AS blocked_until, t.at AS now
  FROM took AS t
 UNION ALL
SELECT r.n,
       CASE WHEN m.key IS NOT NULL THEN m.taken
            WHEN r.tat IS NULL THEN -1
            WHEN r.due <= r.now OR r.at > r.now THEN -3
            WHEN r.blocked_until > r.now THEN 0
            WHEN r.tat - r.now > r.depth - r.price THEN 0
            ELSE -1 END,
       coalesce(m.tat, r.tat - greatest(0, r.at - r.now), 0), r.blocked_until, r.now
  FROM rest AS r
  LEFT JOIN made AS m ON m.namespace = r.namespace AND m.key = r.key
