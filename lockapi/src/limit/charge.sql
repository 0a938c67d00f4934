-- Charges requests that have several lines each: all lines of a request or none, as many times as they fit.
--
-- Promises: a request is admitted only if each of its lines fits at the server's time, checked on locked
-- rows. A request that is refused by what the statement reads before it locks rows writes nothing. The
-- exception is a row that was written at a time in the future, because the clock was set back: its times are
-- moved back. Requests may have keys in common. A request is admitted if it fits after the most that all
-- requests before it may get. It is refused if it does not fit alone or after what they got. Otherwise it has
-- to be retried. The first request is always decided, and so is every request if there is enough. No key
-- occurs twice in a request, and a batch has one namespace.
-- The outcome of a line is how many times it was taken, 0 for refused with its request, -1 for "retry", -2
-- for a row that has to be created first, -3 for a row whose reservations have to be ended first, -4 for a
-- reservation where 10,000 are open. With an id, what is taken is reserved.
-- Index: the primary key of rate_limit; no indexed column changes, so the update is HOT.
-- Race: rows are locked in the order of their keys, and the clock is read after that. With $11, the
-- transaction commits asynchronously.
WITH want AS MATERIALIZED (
    SELECT w.*
      FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.int8[]), pg_catalog.unnest($2::pg_catalog.text[]),
                      pg_catalog.unnest($3::pg_catalog.text[]), pg_catalog.unnest($4::pg_catalog.int8[]),
                      pg_catalog.unnest($5::pg_catalog.bool[]), pg_catalog.unnest($6::pg_catalog.int8[]),
                      pg_catalog.unnest($7::pg_catalog.int8[]), pg_catalog.unnest($8::pg_catalog.int8[]),
                      pg_catalog.unnest($9::pg_catalog.int8[]), pg_catalog.unnest($10::pg_catalog.int8[]))
           WITH ORDINALITY AS w (request, namespace, key, length, sliding, price, depth, id, ttl, times, n)
     WHERE (SELECT CASE WHEN $11::pg_catalog.bool
                        THEN pg_catalog.set_config('synchronous_commit', 'off', true) OPERATOR(pg_catalog.<>) ''
                        ELSE true END)
), looked AS MATERIALIZED (
    SELECT w.*, l.key IS NULL AS absent, l.tat OPERATOR(pg_catalog.-) a.back AS tat,
           l.started OPERATOR(pg_catalog.-) a.back AS started, l.span, l.used, l.before, l.slide,
           l.blocked_until, l.due,
           coalesce(w.id OPERATOR(pg_catalog.<>) 0 AND l.reserved OPERATOR(pg_catalog.>=) 10000, false) AS full,
           a.back, c.now
      FROM want AS w
      CROSS JOIN (SELECT lockapi.clock() AS now OFFSET 0) AS c
      LEFT JOIN LATERAL (
               SELECT r.*
                 FROM lockapi.rate_limit AS r
                WHERE r.namespace OPERATOR(pg_catalog.=) w.namespace AND r.key OPERATOR(pg_catalog.=) w.key
               OFFSET 0) AS l ON true
      CROSS JOIN LATERAL (SELECT greatest(0, l.at OPERATOR(pg_catalog.-) c.now) AS back) AS a
), seen AS MATERIALIZED (
    SELECT k.*, coalesce(k.due OPERATOR(pg_catalog.<=) k.now, false) AS overdue,
           k.absent
           OR lockapi.limit_room(k.tat, k.started, k.span, k.used, k.before, k.slide, k.blocked_until,
                                 k.length, k.sliding, k.depth, k.now) OPERATOR(pg_catalog.>=) k.price
           OR k.back OPERATOR(pg_catalog.>) 0 AS fits
      FROM looked AS k
), hoped AS MATERIALIZED (
    SELECT s.*, pg_catalog.bool_and(s.fits AND NOT s.overdue AND NOT s.full) OVER (PARTITION BY s.request) AS hope,
           pg_catalog.bool_or(s.absent) OVER (PARTITION BY s.request) AS incomplete
      FROM seen AS s
), tried AS MATERIALIZED (
    SELECT DISTINCT h.namespace, h.key
      FROM hoped AS h
     WHERE h.hope AND NOT h.incomplete
), locked AS MATERIALIZED (
    SELECT l.namespace, l.key, l.at, l.tat, l.started, l.span, l.used, l.before, l.slide, l.blocked_until,
           l.due, l.reserved
      FROM tried AS t
      JOIN lockapi.rate_limit AS l
        ON l.namespace OPERATOR(pg_catalog.=) t.namespace AND l.key OPERATOR(pg_catalog.=) t.key
       AND l.namespace OPERATOR(pg_catalog.=) ($2::pg_catalog.text[])[1] AND l.key OPERATOR(pg_catalog.=) ANY ($3::pg_catalog.text[])
     ORDER BY l.namespace, l.key
       FOR UPDATE OF l
), tick AS MATERIALIZED (
    -- Read once, after all rows are locked.
    SELECT lockapi.clock() AS now FROM (SELECT pg_catalog.count(*) FROM locked) AS l OFFSET 0
), timed AS MATERIALIZED (
    SELECT h.n, h.request, h.namespace, h.key, h.length, h.sliding, h.price, h.depth, h.id, h.ttl, h.times,
           a.tat, a.started, greatest(k.span, h.length) AS span, k.used, k.before, k.slide, k.blocked_until,
           k.due, c.now,
           k.reserved, h.id OPERATOR(pg_catalog.<>) 0 AND k.reserved OPERATOR(pg_catalog.>=) 10000 AS full,
           a.known AND c.now OPERATOR(pg_catalog.<) (a.started OPERATOR(pg_catalog.+) greatest(k.span, h.length)) AS same,
           a.known AND c.now OPERATOR(pg_catalog.<)
                       ((a.started OPERATOR(pg_catalog.+) greatest(k.span, h.length))
                        OPERATOR(pg_catalog.+) greatest(h.length, k.slide)) AS next,
           k.at OPERATOR(pg_catalog.>) c.now AS beyond,
           lockapi.limit_room(a.tat, a.started, k.span, k.used, k.before, k.slide, k.blocked_until,
                              h.length, h.sliding, h.depth, c.now) AS room
      FROM hoped AS h
      JOIN locked AS k
        ON k.namespace OPERATOR(pg_catalog.=) h.namespace AND k.key OPERATOR(pg_catalog.=) h.key
      CROSS JOIN tick AS c
      CROSS JOIN LATERAL (
               SELECT k.tat OPERATOR(pg_catalog.-) b.back AS tat, k.started OPERATOR(pg_catalog.-) b.back AS started,
                      coalesce(c.now OPERATOR(pg_catalog.>=) (k.started OPERATOR(pg_catalog.-) b.back)
                               AND c.now OPERATOR(pg_catalog.<)
                                   ((k.started OPERATOR(pg_catalog.-) b.back)
                                    OPERATOR(pg_catalog.+) (2 OPERATOR(pg_catalog.*) k.span)), false) AS known
                 FROM (SELECT greatest(0, k.at OPERATOR(pg_catalog.-) c.now) AS back OFFSET 0) AS b) AS a
     WHERE h.hope AND NOT h.incomplete
), alone AS MATERIALIZED (
    -- How often each request would fit if there were no others.
    SELECT t.*,
           CASE WHEN pg_catalog.bool_and(coalesce(t.due OPERATOR(pg_catalog.>) t.now, true) AND NOT t.full) OVER of_request
                 AND pg_catalog.count(*) OVER of_request OPERATOR(pg_catalog.=) w.lines
                THEN greatest(0, least(t.times, pg_catalog.min(t.room OPERATOR(pg_catalog./) t.price) OVER of_request))
                ELSE 0 END AS alone
      FROM timed AS t
      JOIN (SELECT w.request, pg_catalog.count(*) AS lines FROM want AS w GROUP BY w.request) AS w
        ON w.request OPERATOR(pg_catalog.=) t.request
    WINDOW of_request AS (PARTITION BY t.request)
), behind AS MATERIALIZED (
    -- The most that the requests before it may get; and whether they use the key with another quota.
    SELECT a.*,
           -- No room is larger than the bound, which keeps the sum within int8.
           least(coalesce(pg_catalog.sum(a.price OPERATOR(pg_catalog.*) a.alone) OVER before_it, 0),
                 4000000000000000000)::pg_catalog.int8 AS ahead,
           a.id OPERATOR(pg_catalog.=) 0
               OR (a.reserved OPERATOR(pg_catalog.+)
                   pg_catalog.count(*) FILTER (WHERE a.id OPERATOR(pg_catalog.<>) 0 AND a.alone OPERATOR(pg_catalog.>) 0)
                       OVER before_it) OPERATOR(pg_catalog.<) 10000 AS free,
           coalesce(pg_catalog.first_value(a.length) OVER of_key OPERATOR(pg_catalog.=) a.length
                    AND pg_catalog.first_value(a.sliding) OVER of_key OPERATOR(pg_catalog.=) a.sliding
                    AND pg_catalog.first_value(a.depth) OVER of_key OPERATOR(pg_catalog.=) a.depth, true) AS alike
      FROM alone AS a
    WINDOW of_key AS (PARTITION BY a.namespace, a.key ORDER BY a.alone OPERATOR(pg_catalog.=) 0, a.n),
           before_it AS (PARTITION BY a.namespace, a.key ORDER BY a.n
                         ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
), judged AS MATERIALIZED (
    SELECT b.*,
           CASE WHEN b.alone OPERATOR(pg_catalog.>) 0 AND pg_catalog.bool_and(b.alike AND b.free) OVER of_request
                THEN greatest(0, least(b.times,
                         pg_catalog.min((b.room OPERATOR(pg_catalog.-) b.ahead) OPERATOR(pg_catalog./) b.price)
                         OVER of_request))
                ELSE 0 END AS taken
      FROM behind AS b
    WINDOW of_request AS (PARTITION BY b.request)
), charged AS MATERIALIZED (
    SELECT j.*,
           pg_catalog.sum(j.price OPERATOR(pg_catalog.*) j.taken) OVER until_it AS sum
      FROM judged AS j
    WINDOW until_it AS (PARTITION BY j.namespace, j.key ORDER BY j.n)
), decided AS MATERIALIZED (
    -- Also refused if what the requests before it got leaves too little.
    SELECT c.*, pg_catalog.bool_or(c.alike AND (c.room OPERATOR(pg_catalog.-) c.sum) OPERATOR(pg_catalog.<) c.price)
                OVER (PARTITION BY c.request) AS refused
      FROM charged AS c
), changes AS MATERIALIZED (
    -- What is written to each row, with the quota of the first of its lines that counts.
    SELECT DISTINCT ON (c.namespace, c.key)
           c.namespace, c.key, c.length, c.sliding, c.tat, c.started, c.span, c.used, c.before, c.slide, c.now,
           c.same, c.next,
           (pg_catalog.sum(c.price OPERATOR(pg_catalog.*) c.taken) OVER of_key)::pg_catalog.int8 AS sum,
           pg_catalog.count(*) FILTER (WHERE c.taken OPERATOR(pg_catalog.>) 0 AND c.id OPERATOR(pg_catalog.<>) 0)
               OVER of_key AS reservations,
           pg_catalog.min(CASE WHEN c.taken OPERATOR(pg_catalog.>) 0 AND c.id OPERATOR(pg_catalog.<>) 0
                               THEN c.now OPERATOR(pg_catalog.+) c.ttl END) OVER of_key AS due,
           c.beyond
      FROM charged AS c
    WINDOW of_key AS (PARTITION BY c.namespace, c.key)
     ORDER BY c.namespace, c.key, c.alone OPERATOR(pg_catalog.=) 0, c.n
), reserved AS (
    INSERT INTO lockapi.rate_reservation (namespace, key, expires, id, at, price, span)
    SELECT c.namespace, c.key, c.now OPERATOR(pg_catalog.+) c.ttl, c.id, c.now, c.price, c.length
      FROM charged AS c
     WHERE c.taken OPERATOR(pg_catalog.>) 0 AND c.id OPERATOR(pg_catalog.<>) 0
), updated AS (
    UPDATE lockapi.rate_limit AS l
       SET tat = CASE WHEN r.sum OPERATOR(pg_catalog.>) 0 AND r.length OPERATOR(pg_catalog.=) 0
                      THEN greatest(r.now, r.tat) OPERATOR(pg_catalog.+) r.sum
                      ELSE r.tat END,
           taken = CASE WHEN r.sum OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END,
           at = r.now,
           started = CASE WHEN r.keeps OR r.same THEN r.started
                          WHEN r.next AND r.sliding THEN r.started OPERATOR(pg_catalog.+) r.span
                          ELSE r.now END,
           span = CASE WHEN r.keeps THEN l.span
                       WHEN r.same THEN r.span
                       WHEN r.next THEN greatest(r.length, r.slide)
                       ELSE r.length END,
           slide = CASE WHEN r.keeps THEN r.slide
                        ELSE greatest(CASE WHEN r.same THEN r.slide ELSE 0 END,
                                      CASE WHEN r.sliding THEN r.length ELSE 0 END) END,
           span_before = CASE WHEN r.keeps OR r.same THEN l.span_before
                              WHEN r.next THEN r.span
                              ELSE 0 END,
           used = CASE WHEN r.keeps THEN r.used
                       WHEN r.same THEN r.used OPERATOR(pg_catalog.+) r.sum
                       ELSE r.sum END,
           before = CASE WHEN r.keeps OR r.same THEN r.before
                         WHEN r.next THEN r.used
                         ELSE 0 END,
           due = least(l.due, r.due),
           reserved = l.reserved OPERATOR(pg_catalog.+) r.reservations
      FROM (SELECT h.*,
                   h.sum OPERATOR(pg_catalog.=) 0 OR h.length OPERATOR(pg_catalog.=) 0 AS keeps
              FROM changes AS h) AS r
     WHERE l.namespace OPERATOR(pg_catalog.=) r.namespace AND l.key OPERATOR(pg_catalog.=) r.key
       AND l.namespace OPERATOR(pg_catalog.=) ($2::pg_catalog.text[])[1] AND l.key OPERATOR(pg_catalog.=) ANY ($3::pg_catalog.text[])
       AND (r.sum OPERATOR(pg_catalog.>) 0 OR r.beyond)
    RETURNING l.namespace, l.key, l.tat, l.started, l.span, l.used, l.before, l.slide
)
SELECT h.n,
       CASE WHEN c.taken OPERATOR(pg_catalog.>) 0 THEN c.taken
            WHEN c.due OPERATOR(pg_catalog.<=) c.now THEN -3
            WHEN c.full AND c.room OPERATOR(pg_catalog.>=) c.price THEN -4
            WHEN c.alone OPERATOR(pg_catalog.>) 0 AND NOT c.refused THEN -1
            WHEN c.n IS NOT NULL THEN 0
            WHEN h.overdue THEN -3
            WHEN h.full AND h.fits THEN -4
            WHEN NOT h.hope THEN 0
            WHEN h.absent THEN -2
            ELSE -1 END::pg_catalog.int8 AS outcome,
       -- As if the requests of the batch had come one by one.
       coalesce(CASE WHEN c.alike AND c.length OPERATOR(pg_catalog.=) 0
                     THEN u.tat OPERATOR(pg_catalog.-) (r.sum OPERATOR(pg_catalog.-) c.sum) ELSE u.tat END,
                c.tat, h.tat, 0)::pg_catalog.int8 AS tat,
       coalesce(u.started, c.started, h.started, 0) AS started,
       coalesce(u.span, k.span, h.span, 0) AS span,
       coalesce(CASE WHEN c.alike AND c.length OPERATOR(pg_catalog.>) 0
                     THEN u.used OPERATOR(pg_catalog.-) (r.sum OPERATOR(pg_catalog.-) c.sum) ELSE u.used END,
                c.used, h.used, 0)::pg_catalog.int8 AS used,
       coalesce(u.before, c.before, h.before, 0) AS before,
       coalesce(u.slide, c.slide, h.slide, 0) AS slide,
       coalesce(c.blocked_until, h.blocked_until, 0) AS blocked_until,
       coalesce(c.now, h.now) AS now
  FROM hoped AS h
  LEFT JOIN decided AS c ON c.n OPERATOR(pg_catalog.=) h.n
  LEFT JOIN locked AS k ON k.namespace OPERATOR(pg_catalog.=) c.namespace AND k.key OPERATOR(pg_catalog.=) c.key
  LEFT JOIN changes AS r ON r.namespace OPERATOR(pg_catalog.=) c.namespace AND r.key OPERATOR(pg_catalog.=) c.key
  LEFT JOIN updated AS u ON u.namespace OPERATOR(pg_catalog.=) c.namespace AND u.key OPERATOR(pg_catalog.=) c.key
