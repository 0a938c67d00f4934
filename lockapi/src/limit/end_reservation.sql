-- Ends reservations, of a key as many as are requested.
--
-- Promises: a reservation ends once. If it has not expired, $4 is refunded; if it has, all of it; less what
-- has been replenished since it was taken, at the time of the row where the clock was set back, of which no instant is withheld
-- from two refunds. The outcome is whether it existed and had not expired. The time
-- when the first reservation of a key expires is not changed, unless the key has no reservation any more.
-- That time may be too early, which costs the request that finds out one extra read.
-- Index: the primary keys of rate_limit and rate_reservation; of the former no indexed column changes, so
-- the update is HOT.
-- Race: rows of rate_limit are locked in the order of their keys, reservations are ended under that lock
-- only, and the clock is read after that. A request must not be retried when its answer is lost.
WITH want AS MATERIALIZED (
    SELECT w.*
      FROM unnest($1::text[], $2::text[], $3::int8[], $4::int8[])
           WITH ORDINALITY AS w (namespace, key, id, price, n)
), locked AS MATERIALIZED (
    SELECT l.namespace, l.key, l.started, l.span_before, l.withheld_from, l.withheld, l.at
      FROM lockapi.rate_limit AS l
     WHERE l.namespace = ($1::text[])[1] AND l.key = ANY ($2::text[])
     ORDER BY l.namespace, l.key
       FOR UPDATE OF l
), tick AS MATERIALIZED (
    -- Read once, after all rows are locked.
    SELECT lockapi.clock() AS now FROM (SELECT pg_catalog.count(*) FROM locked) AS l OFFSET 0
), found AS MATERIALIZED (
    SELECT r.place
      FROM want AS w
     CROSS JOIN LATERAL (
           SELECT r.ctid AS place
             FROM lockapi.rate_reservation AS r
            WHERE r.id = w.id AND (r.namespace = w.namespace AND r.key = w.key) IS TRUE
           OFFSET 0) AS r
), gone AS (
    DELETE FROM lockapi.rate_reservation AS r
     WHERE r.ctid = ANY (ARRAY(SELECT f.place FROM found AS f WHERE (SELECT t.now FROM tick AS t) IS NOT NULL))
    RETURNING r.namespace, r.key, r.expires, r.id, r.at, r.price, r.span
), ended AS MATERIALIZED (
    SELECT w.n, g.namespace, g.key, g.at, g.span, k.started, k.span_before, k.withheld_from, k.withheld,
           greatest(k.at, t.now) AS now,
           CASE WHEN g.expires > t.now THEN least(w.price, g.price) ELSE g.price END AS back,
           g.expires > t.now AS good
      FROM gone AS g
      JOIN (SELECT DISTINCT ON (w.id) w.* FROM want AS w ORDER BY w.id, w.n) AS w ON w.id = g.id
      JOIN locked AS k ON k.namespace = g.namespace AND k.key = g.key
     CROSS JOIN tick AS t
), summed AS MATERIALIZED (
    SELECT e.namespace, e.key, pg_catalog.count(*) AS many,
           pg_catalog.min(e.at) FILTER (WHERE e.span = 0) AS since,
           coalesce(pg_catalog.sum(e.back) FILTER (WHERE e.span = 0), 0) AS back,
           coalesce(pg_catalog.sum(least(e.back, lockapi.limit_replenished(e.at, e.withheld_from, e.withheld, e.now)))
               FILTER (WHERE e.span = 0), 0) AS apart,
           pg_catalog.max(e.now) AS now,
           coalesce(pg_catalog.sum(e.back)
               FILTER (WHERE e.span > 0 AND e.at >= e.started), 0) AS used,
           coalesce(pg_catalog.sum(e.back)
               FILTER (WHERE e.span > 0 AND e.at < e.started AND e.at >= e.started - e.span_before), 0) AS before
      FROM ended AS e
     GROUP BY e.namespace, e.key
), settled AS (
    UPDATE lockapi.rate_limit AS l
       SET tat = greatest(least(l.tat, l.at), l.tat - (s.back - s.more))::int8,
           (withheld_from, withheld) = (
               SELECT x.times[1], x.times[2]
                 FROM (SELECT lockapi.limit_withheld(l.withheld_from, l.withheld, s.since, s.more) AS times OFFSET 0) AS x),
           used = greatest(0, l.used - s.used)::int8,
           before = greatest(0, l.before - s.before)::int8,
           reserved = greatest(0, l.reserved - s.many),
           due = CASE WHEN l.reserved > s.many THEN l.due END
      FROM (SELECT s.*, least(s.apart, lockapi.limit_replenished(s.since, k.withheld_from, k.withheld, s.now))::int8 AS more
              FROM summed AS s
              JOIN locked AS k ON k.namespace = s.namespace AND k.key = s.key
            OFFSET 0) AS s
     WHERE l.namespace = s.namespace AND l.key = s.key
       AND l.namespace = ($1::text[])[1] AND l.key = ANY ($2::text[])
    RETURNING 1
)
SELECT w.n, coalesce(e.good, false) AND (SELECT pg_catalog.count(*) FROM settled) >= 0 AS done
  FROM want AS w
  LEFT JOIN ended AS e ON e.n = w.n
