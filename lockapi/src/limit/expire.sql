-- Puts rows in order: ends reservations that have expired, at most 1,000 of each key, and moves back the times of
-- a row that was written at a time in the future, because the clock was set back.
--
-- Promises: no more time has passed since the row was written than the row says, so nothing that was taken is
-- forgotten; refunds are counted at the time of the row, then all times move back by as much. Ended reservations are refunded, less what has been replenished since they were taken, of which no
-- instant is withheld from two refunds. If a key has more of them, it stays due, and the next request continues.
-- Index: the primary key of rate_limit, of which no indexed column changes, so the update is HOT; and
-- rate_reservation_due.
-- Race: rows of rate_limit are locked in the order of their keys, reservations are ended under that lock
-- only, and the clock is read after that. A volatile function reads when the next reservation expires. It
-- sees what others reserved before the lock was acquired, and none of the reservations that this statement
-- ends: all of them have been deleted by then. A reservation that the snapshot does not show and that has
-- expired keeps the key due.
WITH want AS MATERIALIZED (
    SELECT w.*
      FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]), pg_catalog.unnest($2::pg_catalog.text[]))
           WITH ORDINALITY AS w (namespace, key, n)
), locked AS MATERIALIZED (
    SELECT l.namespace, l.key, l.started, l.span_before, l.withheld_from, l.withheld, l.at
      FROM lockapi.rate_limit AS l
     WHERE l.namespace OPERATOR(pg_catalog.=) ($1::pg_catalog.text[])[1]
       AND l.key OPERATOR(pg_catalog.=) ANY ($2::pg_catalog.text[])
     ORDER BY l.namespace, l.key
       FOR UPDATE OF l
), tick AS MATERIALIZED (
    -- Read once, after all rows are locked.
    SELECT lockapi.clock() AS now FROM (SELECT pg_catalog.count(*) FROM locked) AS l OFFSET 0
), front AS MATERIALIZED (
    SELECT k.namespace, k.key, r.place, r.expires
      FROM locked AS k
     CROSS JOIN tick AS t
     CROSS JOIN LATERAL (
           SELECT r.ctid AS place, r.expires
             FROM lockapi.rate_reservation AS r
            WHERE r.namespace OPERATOR(pg_catalog.=) k.namespace AND r.key OPERATOR(pg_catalog.=) k.key
              AND r.expires OPERATOR(pg_catalog.<=) t.now
            ORDER BY r.expires
            LIMIT 1000) AS r
), gone AS (
    DELETE FROM lockapi.rate_reservation AS r
     WHERE r.ctid OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT f.place FROM front AS f))
    RETURNING r.namespace, r.key, r.at, r.price, r.span
), summed AS MATERIALIZED (
    SELECT k.namespace, k.key, pg_catalog.count(g.at) AS many,
           pg_catalog.min(g.at) FILTER (WHERE g.span OPERATOR(pg_catalog.=) 0) AS since,
           coalesce(pg_catalog.sum(g.price) FILTER (WHERE g.span OPERATOR(pg_catalog.=) 0), 0) AS back,
           coalesce(pg_catalog.sum(least(g.price, lockapi.limit_replenished(g.at, k.withheld_from, k.withheld,
                                                                            greatest(k.at, t.now))))
               FILTER (WHERE g.span OPERATOR(pg_catalog.=) 0), 0) AS apart,
           pg_catalog.max(k.withheld_from) AS withheld_from, pg_catalog.max(k.withheld) AS withheld,
           pg_catalog.max(greatest(k.at, t.now)) AS now,
           pg_catalog.max(greatest(0, k.at OPERATOR(pg_catalog.-) t.now)) AS ahead,
           coalesce(pg_catalog.sum(g.price)
               FILTER (WHERE g.span OPERATOR(pg_catalog.>) 0 AND g.at OPERATOR(pg_catalog.>=) k.started), 0) AS used,
           coalesce(pg_catalog.sum(g.price)
               FILTER (WHERE g.span OPERATOR(pg_catalog.>) 0 AND g.at OPERATOR(pg_catalog.<) k.started
                         AND g.at OPERATOR(pg_catalog.>=) (k.started OPERATOR(pg_catalog.-) k.span_before)), 0) AS before
      FROM locked AS k
     CROSS JOIN tick AS t
      LEFT JOIN gone AS g
        ON g.namespace OPERATOR(pg_catalog.=) k.namespace AND g.key OPERATOR(pg_catalog.=) k.key
     GROUP BY k.namespace, k.key
), fronts AS MATERIALIZED (
    SELECT f.namespace, f.key, pg_catalog.count(*) AS many, pg_catalog.max(f.expires) AS last
      FROM front AS f
     GROUP BY f.namespace, f.key
), settled AS (
    UPDATE lockapi.rate_limit AS l
       SET tat = (greatest(least(l.tat, l.at),
                           l.tat OPERATOR(pg_catalog.-) (s.back OPERATOR(pg_catalog.-) s.more))
                      OPERATOR(pg_catalog.-) s.ahead)::pg_catalog.int8,
           at = l.at OPERATOR(pg_catalog.-) s.ahead,
           started = l.started OPERATOR(pg_catalog.-) s.ahead,
           (withheld_from, withheld) = (
               SELECT x.times[1] OPERATOR(pg_catalog.-) CASE WHEN x.times[2] OPERATOR(pg_catalog.>) 0
                                                             THEN s.ahead ELSE 0 END,
                      x.times[2]
                 FROM (SELECT lockapi.limit_withheld(l.withheld_from, l.withheld, s.since, s.more) AS times OFFSET 0) AS x),
           used = greatest(0, l.used OPERATOR(pg_catalog.-) s.used)::pg_catalog.int8,
           before = greatest(0, l.before OPERATOR(pg_catalog.-) s.before)::pg_catalog.int8,
           reserved = CASE WHEN s.due IS NULL THEN 0
                           ELSE greatest(0, l.reserved OPERATOR(pg_catalog.-) s.many) END,
           due = s.due
      FROM (SELECT s.*,
                   least(s.apart, lockapi.limit_replenished(s.since, s.withheld_from, s.withheld, s.now))::pg_catalog.int8
                       AS more,
                   CASE WHEN f.many OPERATOR(pg_catalog.=) 1000 THEN f.last
                        ELSE lockapi.next_expiry(s.namespace, s.key) END AS due
              FROM summed AS s
              LEFT JOIN fronts AS f
                ON f.namespace OPERATOR(pg_catalog.=) s.namespace AND f.key OPERATOR(pg_catalog.=) s.key
             WHERE (SELECT pg_catalog.count(*) FROM gone) OPERATOR(pg_catalog.>=) 0
            OFFSET 0) AS s
     WHERE l.namespace OPERATOR(pg_catalog.=) s.namespace AND l.key OPERATOR(pg_catalog.=) s.key
       AND l.namespace OPERATOR(pg_catalog.=) ($1::pg_catalog.text[])[1]
       AND l.key OPERATOR(pg_catalog.=) ANY ($2::pg_catalog.text[])
    RETURNING 1
)
SELECT w.n, (SELECT pg_catalog.count(*) FROM settled) OPERATOR(pg_catalog.>=) 0 AS done
  FROM want AS w
