-- Charges requests that have several lines each: all lines of a request or none, as many times as they fit.
--
-- Promises: a request is charged only if each of its lines fits at the server's time, checked on locked rows. A
-- request that is refused writes nothing; where what the statement reads first refuses it, it locks no row. No
-- key occurs twice in a batch, so that no request depends on another, and a batch has one namespace.
-- The outcome of a line is how many times it was taken, 0 for refused with its request, -1 for "retry", -2 for
-- a row that has to be created first, -3 for a row that has to be put in order first (reservations have expired,
-- or it was written at a time in the future, because the clock was set back), -4 for a line after which more
-- than 10,000 reservations would be open. $9 to $12 are what is reserved: the number of the line, the
-- reservation, its time to live and its price.
-- Index: the primary key of rate_limit; no indexed column changes, so the update is HOT.
-- Race: rows are locked in the order of their keys, and the clock is read after that. With $13, the
-- transaction commits asynchronously.
WITH booked AS MATERIALIZED (
    SELECT w.line, w.id, w.ttl, w.price
      FROM ROWS FROM (pg_catalog.unnest($9::pg_catalog.int8[]), pg_catalog.unnest($10::pg_catalog.int8[]),
                      pg_catalog.unnest($11::pg_catalog.int8[]), pg_catalog.unnest($12::pg_catalog.int8[]))
           AS w (line, id, ttl, price)
), bookings AS MATERIALIZED (
    SELECT b.line, pg_catalog.count(*) AS many, pg_catalog.min(b.ttl) AS ttl
      FROM booked AS b
     GROUP BY b.line
), seen AS MATERIALIZED (
    SELECT w.n, w.request, w.key, w.length, w.sliding, w.price, w.depth, w.times, b.many, b.ttl,
           l.key IS NULL AS absent, l.tat OPERATOR(pg_catalog.-) a.back AS tat,
           l.started OPERATOR(pg_catalog.-) a.back AS started, l.span, l.used, l.before, l.slide, l.blocked_until,
           l.reserved,
           coalesce(l.due OPERATOR(pg_catalog.<=) c.now, false) OR a.back OPERATOR(pg_catalog.>) 0 AS overdue,
           coalesce((l.reserved OPERATOR(pg_catalog.+) b.many) OPERATOR(pg_catalog.>) 10000, false) AS crowded, c.now,
           l.key IS NULL
           OR lockapi.limit_room(l.tat OPERATOR(pg_catalog.-) a.back, l.started OPERATOR(pg_catalog.-) a.back,
                                 l.span, l.used, l.before, l.slide, l.blocked_until,
                                 w.length, w.sliding, w.depth, c.now) OPERATOR(pg_catalog.>=) w.price AS fits
      FROM ROWS FROM (pg_catalog.unnest($2::pg_catalog.int8[]), pg_catalog.unnest($3::pg_catalog.text[]),
                      pg_catalog.unnest($4::pg_catalog.int8[]), pg_catalog.unnest($5::pg_catalog.bool[]),
                      pg_catalog.unnest($6::pg_catalog.int8[]), pg_catalog.unnest($7::pg_catalog.int8[]),
                      pg_catalog.unnest($8::pg_catalog.int8[]))
           WITH ORDINALITY AS w (request, key, length, sliding, price, depth, times, n)
      CROSS JOIN (SELECT lockapi.clock() AS now
                   WHERE CASE WHEN $13::pg_catalog.bool
                              THEN pg_catalog.set_config('synchronous_commit', 'off', true) OPERATOR(pg_catalog.<>) ''
                              ELSE true END
                  OFFSET 0) AS c
      LEFT JOIN LATERAL (
               SELECT r.*
                 FROM lockapi.rate_limit AS r
                WHERE r.namespace OPERATOR(pg_catalog.=) $1::pg_catalog.text AND r.key OPERATOR(pg_catalog.=) w.key
               OFFSET 0) AS l ON true
      CROSS JOIN LATERAL (SELECT greatest(0, l.at OPERATOR(pg_catalog.-) c.now) AS back) AS a
      LEFT JOIN bookings AS b ON b.line OPERATOR(pg_catalog.=) w.n
), hoped AS MATERIALIZED (
    SELECT s.request, pg_catalog.bool_and(s.fits AND NOT s.overdue AND NOT s.crowded) AS hope,
           pg_catalog.bool_or(s.absent) AS incomplete, pg_catalog.count(*) AS lines
      FROM seen AS s
     GROUP BY s.request
), locked AS MATERIALIZED (
    SELECT l.key, l.at, l.tat, l.started, l.span, l.used, l.before, l.slide, l.blocked_until, l.due, l.reserved
      FROM lockapi.rate_limit AS l
     WHERE l.namespace OPERATOR(pg_catalog.=) $1::pg_catalog.text
       AND l.key OPERATOR(pg_catalog.=) ANY (ARRAY(
               SELECT s.key
                 FROM seen AS s
                 JOIN hoped AS h ON h.request OPERATOR(pg_catalog.=) s.request
                WHERE h.hope AND NOT h.incomplete))
     ORDER BY l.namespace, l.key
       FOR UPDATE OF l
), tick AS MATERIALIZED (
    -- Read once, after all rows are locked.
    SELECT lockapi.clock() AS now FROM (SELECT pg_catalog.count(*) FROM locked) AS l OFFSET 0
), timed AS MATERIALIZED (
    SELECT w.n, w.request, w.key, w.length, w.sliding, w.price, w.times, w.many, w.ttl, a.tat, a.started,
           k.span AS span_now, greatest(k.span, w.length) AS span, k.used, k.before, k.slide, k.blocked_until,
           k.reserved,
           coalesce(k.due OPERATOR(pg_catalog.<=) c.now, false) OR k.at OPERATOR(pg_catalog.>) c.now AS overdue,
           coalesce((k.reserved OPERATOR(pg_catalog.+) w.many) OPERATOR(pg_catalog.>) 10000, false) AS crowded, c.now,
           a.known AND c.now OPERATOR(pg_catalog.<) (a.started OPERATOR(pg_catalog.+) greatest(k.span, w.length)) AS same,
           a.known AND c.now OPERATOR(pg_catalog.<)
                       ((a.started OPERATOR(pg_catalog.+) greatest(k.span, w.length))
                        OPERATOR(pg_catalog.+) greatest(w.length, k.slide)) AS next,
           lockapi.limit_room(a.tat, a.started, k.span, k.used, k.before, k.slide, k.blocked_until,
                              w.length, w.sliding, w.depth, c.now) OPERATOR(pg_catalog./) w.price AS fits
      FROM seen AS w
      JOIN locked AS k ON k.key OPERATOR(pg_catalog.=) w.key
      CROSS JOIN tick AS c
      CROSS JOIN LATERAL (
               SELECT k.tat OPERATOR(pg_catalog.-) b.back AS tat, k.started OPERATOR(pg_catalog.-) b.back AS started,
                      coalesce(c.now OPERATOR(pg_catalog.>=) (k.started OPERATOR(pg_catalog.-) b.back)
                               AND c.now OPERATOR(pg_catalog.<)
                                   ((k.started OPERATOR(pg_catalog.-) b.back)
                                    OPERATOR(pg_catalog.+) (2 OPERATOR(pg_catalog.*) k.span)), false) AS known
                 FROM (SELECT greatest(0, k.at OPERATOR(pg_catalog.-) c.now) AS back OFFSET 0) AS b) AS a
), counted AS MATERIALIZED (
    SELECT t.request, pg_catalog.count(*) AS lines, pg_catalog.bool_or(t.overdue OR t.crowded) AS stopped,
           greatest(0, least(pg_catalog.min(t.times), pg_catalog.min(t.fits))) AS fits
      FROM timed AS t
     GROUP BY t.request
), decided AS MATERIALIZED (
    SELECT h.request, h.hope,
           CASE WHEN j.lines OPERATOR(pg_catalog.=) h.lines AND NOT j.stopped THEN j.fits ELSE 0 END AS taken
      FROM hoped AS h
      LEFT JOIN counted AS j ON j.request OPERATOR(pg_catalog.=) h.request
), charged AS MATERIALIZED (
    SELECT t.*, d.taken, t.price OPERATOR(pg_catalog.*) d.taken AS sum,
           t.length OPERATOR(pg_catalog.=) 0 AS keeps
      FROM timed AS t
      JOIN decided AS d ON d.request OPERATOR(pg_catalog.=) t.request
     WHERE d.taken OPERATOR(pg_catalog.>) 0
), reserved AS (
    INSERT INTO lockapi.rate_reservation (namespace, key, expires, id, at, price, span)
    SELECT $1::pg_catalog.text, c.key, c.now OPERATOR(pg_catalog.+) b.ttl, b.id, c.now, b.price, c.length
      FROM charged AS c
      JOIN booked AS b ON b.line OPERATOR(pg_catalog.=) c.n
), updated AS (
    UPDATE lockapi.rate_limit AS l
       SET tat = CASE WHEN r.length OPERATOR(pg_catalog.=) 0
                      THEN greatest(r.now, r.tat) OPERATOR(pg_catalog.+) r.sum
                      ELSE r.tat END,
           taken = r.taken,
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
           due = least(l.due, r.now OPERATOR(pg_catalog.+) r.ttl),
           reserved = l.reserved OPERATOR(pg_catalog.+) coalesce(r.many, 0)
      FROM charged AS r
     WHERE l.namespace OPERATOR(pg_catalog.=) $1::pg_catalog.text AND l.key OPERATOR(pg_catalog.=) r.key
       AND l.key OPERATOR(pg_catalog.=) ANY ($3::pg_catalog.text[])
    RETURNING r.n, r.taken, l.tat, l.started, l.span, l.used, l.before, l.slide, l.blocked_until, l.reserved, r.now
)
SELECT u.n, u.taken AS outcome, u.tat, coalesce(u.started, 0) AS started, u.span, u.used, u.before, u.slide,
       coalesce(u.blocked_until, 0) AS blocked_until, u.reserved, u.now
  FROM updated AS u
 UNION ALL
SELECT s.n,
       CASE WHEN t.overdue THEN -3
            WHEN t.crowded AND t.fits OPERATOR(pg_catalog.>) 0 THEN -4
            WHEN t.n IS NOT NULL THEN 0
            WHEN s.overdue THEN -3
            WHEN s.crowded AND s.fits THEN -4
            WHEN NOT d.hope THEN 0
            WHEN s.absent THEN -2
            ELSE -1 END::pg_catalog.int8,
       coalesce(t.tat, s.tat, 0), coalesce(t.started, s.started, 0), coalesce(t.span_now, s.span, 0),
       coalesce(t.used, s.used, 0), coalesce(t.before, s.before, 0), coalesce(t.slide, s.slide, 0),
       coalesce(t.blocked_until, s.blocked_until, 0), coalesce(t.reserved, s.reserved, 0), coalesce(t.now, s.now)
  FROM seen AS s
  JOIN decided AS d ON d.request OPERATOR(pg_catalog.=) s.request
  LEFT JOIN timed AS t ON t.n OPERATOR(pg_catalog.=) s.n
 WHERE d.taken OPERATOR(pg_catalog.=) 0
