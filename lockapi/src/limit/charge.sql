-- Charges requests that have several lines each: all lines of a request, or none.
--
-- Promises: a request is admitted only if each of its lines fits at the server's time, judged on
-- locked rows; one that is refused by what is seen before locks and writes nothing, except that a
-- time which the quota cannot have led to is brought back. No key occurs twice in a batch.
-- A line's outcome is 1 for taken, 0 for refused with its request, -1 for "ask again", -2 for a row
-- that has to be created first, -3 for a row whose reservations have to be ended first.
-- Index: the primary key of rate_limit; no indexed column changes, so the update is HOT.
-- Race: rows are locked in the order of their keys, and the clock is read after that. With $10 the
-- commit does not wait for the disk.
WITH want AS MATERIALIZED (
    SELECT w.*
      FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.int8[]), pg_catalog.unnest($2::pg_catalog.text[]),
                      pg_catalog.unnest($3::pg_catalog.text[]), pg_catalog.unnest($4::pg_catalog.int8[]),
                      pg_catalog.unnest($5::pg_catalog.bool[]), pg_catalog.unnest($6::pg_catalog.int8[]),
                      pg_catalog.unnest($7::pg_catalog.int8[]), pg_catalog.unnest($8::pg_catalog.int8[]),
                      pg_catalog.unnest($9::pg_catalog.int8[]))
           WITH ORDINALITY AS w (request, namespace, key, length, sliding, price, depth, id, ttl, n)
     WHERE (SELECT CASE WHEN $10::pg_catalog.bool
                        THEN pg_catalog.set_config('synchronous_commit', 'off', true) OPERATOR(pg_catalog.<>) ''
                        ELSE true END)
), looked AS MATERIALIZED (
    SELECT w.*, l.key IS NULL AS absent, l.tat, l.started, l.used, l.before, l.blocked_until, l.due,
           c.now
      FROM want AS w
      CROSS JOIN (SELECT lockapi.clock() AS now OFFSET 0) AS c
      LEFT JOIN LATERAL (
               SELECT r.*
                 FROM lockapi.rate_limit AS r
                WHERE r.namespace OPERATOR(pg_catalog.=) w.namespace AND r.key OPERATOR(pg_catalog.=) w.key
               OFFSET 0) AS l ON true
), seen AS MATERIALIZED (
    SELECT k.*, coalesce(k.due OPERATOR(pg_catalog.<=) k.now, false) AS overdue,
           k.absent
           OR lockapi.limit_room(k.tat, k.started, k.used, k.before, k.blocked_until, k.length,
                                 k.sliding, k.depth, k.now) OPERATOR(pg_catalog.>=) k.price
           OR (k.length OPERATOR(pg_catalog.=) 0
               AND k.tat OPERATOR(pg_catalog.>) (k.now OPERATOR(pg_catalog.+) k.depth)) AS fits
      FROM looked AS k
), hoped AS MATERIALIZED (
    SELECT s.*, pg_catalog.bool_and(s.fits AND NOT s.overdue) OVER (PARTITION BY s.request) AS hope,
           pg_catalog.bool_or(s.absent) OVER (PARTITION BY s.request) AS incomplete
      FROM seen AS s
), locked AS MATERIALIZED (
    SELECT h.n, h.request, h.namespace, h.key, h.length, h.sliding, h.price, h.depth, h.id, h.ttl,
           l.tat, l.started, l.used, l.before, l.blocked_until, l.due
      FROM hoped AS h
      JOIN lockapi.rate_limit AS l
        ON l.namespace OPERATOR(pg_catalog.=) h.namespace AND l.key OPERATOR(pg_catalog.=) h.key
       AND l.namespace OPERATOR(pg_catalog.=) ANY ($2::pg_catalog.text[])
       AND l.key OPERATOR(pg_catalog.=) ANY ($3::pg_catalog.text[])
     WHERE h.hope AND NOT h.incomplete
     ORDER BY l.namespace, l.key
       FOR UPDATE OF l
), timed AS MATERIALIZED (
    SELECT k.*, c.now,
           coalesce(c.now OPERATOR(pg_catalog.>=) k.started
                    AND c.now OPERATOR(pg_catalog.<) (k.started OPERATOR(pg_catalog.+) k.length), false) AS same,
           coalesce(k.sliding AND c.now OPERATOR(pg_catalog.>=) (k.started OPERATOR(pg_catalog.+) k.length)
                    AND c.now OPERATOR(pg_catalog.<)
                        (k.started OPERATOR(pg_catalog.+) (2 OPERATOR(pg_catalog.*) k.length)), false) AS next,
           lockapi.limit_room(k.tat, k.started, k.used, k.before, k.blocked_until, k.length,
                              k.sliding, k.depth, c.now) AS room
      FROM locked AS k
      CROSS JOIN (SELECT lockapi.clock() AS now FROM (SELECT pg_catalog.count(*) FROM locked) AS l OFFSET 0) AS c
), judged AS MATERIALIZED (
    SELECT t.*,
           t.length OPERATOR(pg_catalog.=) 0
               AND t.tat OPERATOR(pg_catalog.>) (t.now OPERATOR(pg_catalog.+) t.depth) AS beyond,
           pg_catalog.bool_and(t.room OPERATOR(pg_catalog.>=) t.price
                               AND coalesce(t.due OPERATOR(pg_catalog.>) t.now, true)) OVER (PARTITION BY t.request)
           AND pg_catalog.count(*) OVER (PARTITION BY t.request) OPERATOR(pg_catalog.=)
               (SELECT pg_catalog.count(*) FROM want AS w WHERE w.request OPERATOR(pg_catalog.=) t.request) AS admitted
      FROM timed AS t
), updated AS (
    UPDATE lockapi.rate_limit AS l
       SET tat = CASE WHEN NOT j.admitted THEN j.now OPERATOR(pg_catalog.+) j.depth
                      WHEN j.length OPERATOR(pg_catalog.=) 0
                      THEN greatest(j.now, least(j.tat, j.now OPERATOR(pg_catalog.+) j.depth))
                           OPERATOR(pg_catalog.+) j.price
                      ELSE CASE WHEN j.same THEN j.started
                                WHEN j.next THEN j.started OPERATOR(pg_catalog.+) j.length
                                ELSE j.now END
                           OPERATOR(pg_catalog.+)
                           CASE WHEN j.sliding THEN 2 OPERATOR(pg_catalog.*) j.length ELSE j.length END END,
           taken = CASE WHEN j.admitted THEN 1 ELSE 0 END,
           at = j.now,
           started = CASE WHEN NOT j.admitted OR j.length OPERATOR(pg_catalog.=) 0 OR j.same THEN j.started
                          WHEN j.next THEN j.started OPERATOR(pg_catalog.+) j.length
                          ELSE j.now END,
           used = CASE WHEN NOT j.admitted OR j.length OPERATOR(pg_catalog.=) 0 THEN j.used
                       WHEN j.same THEN j.used OPERATOR(pg_catalog.+) j.price
                       ELSE j.price END,
           before = CASE WHEN NOT j.admitted OR j.length OPERATOR(pg_catalog.=) 0 OR j.same THEN j.before
                         WHEN j.next THEN j.used
                         ELSE 0 END,
           due = CASE WHEN j.admitted AND j.id OPERATOR(pg_catalog.<>) 0
                      THEN least(l.due, j.now OPERATOR(pg_catalog.+) j.ttl) ELSE l.due END,
           reserved = CASE WHEN j.admitted AND j.id OPERATOR(pg_catalog.<>) 0
                           THEN l.reserved OPERATOR(pg_catalog.||)
                                ARRAY[j.id, j.now, j.price, j.length, j.now OPERATOR(pg_catalog.+) j.ttl]
                           ELSE l.reserved END
      FROM judged AS j
     WHERE l.namespace OPERATOR(pg_catalog.=) j.namespace AND l.key OPERATOR(pg_catalog.=) j.key
       AND l.namespace OPERATOR(pg_catalog.=) ANY ($2::pg_catalog.text[])
       AND l.key OPERATOR(pg_catalog.=) ANY ($3::pg_catalog.text[])
       AND (j.admitted OR j.beyond)
    RETURNING j.n, l.tat, l.started, l.used, l.before
)
SELECT h.n,
       CASE WHEN j.admitted THEN 1
            WHEN j.due OPERATOR(pg_catalog.<=) j.now THEN -3
            WHEN j.n IS NOT NULL THEN 0
            WHEN h.overdue THEN -3
            WHEN NOT h.hope THEN 0
            WHEN h.absent THEN -2
            ELSE -1 END::pg_catalog.int8 AS outcome,
       coalesce(u.tat, j.tat, h.tat, 0) AS tat,
       coalesce(u.started, j.started, h.started, 0) AS started,
       coalesce(u.used, j.used, h.used, 0) AS used,
       coalesce(u.before, j.before, h.before, 0) AS before,
       coalesce(j.blocked_until, h.blocked_until, 0) AS blocked_until,
       coalesce(j.now, h.now) AS now
  FROM hoped AS h
  LEFT JOIN judged AS j ON j.n OPERATOR(pg_catalog.=) h.n
  LEFT JOIN updated AS u ON u.n OPERATOR(pg_catalog.=) h.n
