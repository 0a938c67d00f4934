-- Charges requests that have no key in common and reserve nothing: the simple form of charge.sql.
--
-- Promises: as charge.sql; no request has to be retried because of another.
-- Index: the primary key of rate_limit; no indexed column changes, so the update is HOT.
-- Race: as in charge.sql.
WITH want AS MATERIALIZED (
    SELECT w.*
      FROM ROWS FROM (pg_catalog.unnest($2::pg_catalog.int8[]), pg_catalog.unnest($3::pg_catalog.text[]),
                      pg_catalog.unnest($4::pg_catalog.int8[]), pg_catalog.unnest($5::pg_catalog.bool[]),
                      pg_catalog.unnest($6::pg_catalog.int8[]), pg_catalog.unnest($7::pg_catalog.int8[]),
                      pg_catalog.unnest($8::pg_catalog.int8[]))
           WITH ORDINALITY AS w (request, key, length, sliding, price, depth, times, n)
     WHERE (SELECT CASE WHEN $9::pg_catalog.bool
                        THEN pg_catalog.set_config('synchronous_commit', 'off', true) OPERATOR(pg_catalog.<>) ''
                        ELSE true END)
), seen AS MATERIALIZED (
    SELECT w.*, l.key IS NULL AS absent, l.tat OPERATOR(pg_catalog.-) a.back AS tat,
           l.started OPERATOR(pg_catalog.-) a.back AS started, l.span, l.used, l.before, l.slide, l.blocked_until,
           coalesce(l.due OPERATOR(pg_catalog.<=) c.now, false) AS overdue, c.now,
           l.key IS NULL OR a.back OPERATOR(pg_catalog.>) 0
           OR lockapi.limit_room(l.tat OPERATOR(pg_catalog.-) a.back, l.started OPERATOR(pg_catalog.-) a.back,
                                 l.span, l.used, l.before, l.slide, l.blocked_until,
                                 w.length, w.sliding, w.depth, c.now) OPERATOR(pg_catalog.>=) w.price AS fits
      FROM want AS w
      CROSS JOIN (SELECT lockapi.clock() AS now OFFSET 0) AS c
      LEFT JOIN LATERAL (
               SELECT r.*
                 FROM lockapi.rate_limit AS r
                WHERE r.namespace OPERATOR(pg_catalog.=) $1::pg_catalog.text AND r.key OPERATOR(pg_catalog.=) w.key
               OFFSET 0) AS l ON true
      CROSS JOIN LATERAL (SELECT greatest(0, l.at OPERATOR(pg_catalog.-) c.now) AS back) AS a
), hoped AS MATERIALIZED (
    SELECT s.request, pg_catalog.bool_and(s.fits AND NOT s.overdue) AS hope, pg_catalog.bool_or(s.absent) AS incomplete,
           pg_catalog.count(*) AS lines
      FROM seen AS s
     GROUP BY s.request
), locked AS MATERIALIZED (
    SELECT l.key, l.at, l.tat, l.started, l.span, l.used, l.before, l.slide, l.blocked_until, l.due
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
    SELECT w.n, w.request, w.key, w.length, w.sliding, w.price, w.times, a.tat, a.started, k.span AS span_now,
           greatest(k.span, w.length) AS span, k.used, k.before, k.slide, k.blocked_until,
           coalesce(k.due OPERATOR(pg_catalog.<=) c.now, false) AS overdue, c.now,
           k.at OPERATOR(pg_catalog.>) c.now AS beyond,
           a.known AND c.now OPERATOR(pg_catalog.<) (a.started OPERATOR(pg_catalog.+) greatest(k.span, w.length)) AS same,
           a.known AND c.now OPERATOR(pg_catalog.<)
                       ((a.started OPERATOR(pg_catalog.+) greatest(k.span, w.length))
                        OPERATOR(pg_catalog.+) greatest(w.length, k.slide)) AS next,
           lockapi.limit_room(a.tat, a.started, k.span, k.used, k.before, k.slide, k.blocked_until,
                              w.length, w.sliding, w.depth, c.now) OPERATOR(pg_catalog./) w.price AS fits
      FROM want AS w
      JOIN locked AS k ON k.key OPERATOR(pg_catalog.=) w.key
      CROSS JOIN tick AS c
      CROSS JOIN LATERAL (
               SELECT k.tat OPERATOR(pg_catalog.-) b.back AS tat, k.started OPERATOR(pg_catalog.-) b.back AS started,
                      coalesce(c.now OPERATOR(pg_catalog.>=) (k.started OPERATOR(pg_catalog.-) b.back)
                               AND c.now OPERATOR(pg_catalog.<)
                                   ((k.started OPERATOR(pg_catalog.-) b.back)
                                    OPERATOR(pg_catalog.+) (2 OPERATOR(pg_catalog.*) k.span)), false) AS known
                 FROM (SELECT greatest(0, k.at OPERATOR(pg_catalog.-) c.now) AS back OFFSET 0) AS b) AS a
), decided AS MATERIALIZED (
    SELECT t.request,
           CASE WHEN pg_catalog.bool_and(NOT t.overdue)
                 AND pg_catalog.count(*) OPERATOR(pg_catalog.=) pg_catalog.min(h.lines)
                THEN greatest(0, least(pg_catalog.min(t.times), pg_catalog.min(t.fits)))
                ELSE 0 END AS taken
      FROM timed AS t
      JOIN hoped AS h ON h.request OPERATOR(pg_catalog.=) t.request
     GROUP BY t.request
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
                         ELSE 0 END
      FROM (SELECT s.*, s.sum OPERATOR(pg_catalog.=) 0 OR s.length OPERATOR(pg_catalog.=) 0 AS keeps
              FROM (SELECT t.*, t.price OPERATOR(pg_catalog.*) d.taken AS sum
                      FROM timed AS t
                      JOIN decided AS d ON d.request OPERATOR(pg_catalog.=) t.request) AS s) AS r
     WHERE l.namespace OPERATOR(pg_catalog.=) $1::pg_catalog.text AND l.key OPERATOR(pg_catalog.=) r.key
       AND l.key OPERATOR(pg_catalog.=) ANY ($3::pg_catalog.text[])
       AND (r.sum OPERATOR(pg_catalog.>) 0 OR r.beyond)
    RETURNING l.key, l.tat, l.started, l.span, l.used, l.before, l.slide
)
SELECT s.n,
       CASE WHEN d.taken OPERATOR(pg_catalog.>) 0 THEN d.taken
            WHEN t.overdue THEN -3
            WHEN t.n IS NOT NULL THEN 0
            WHEN s.overdue THEN -3
            WHEN NOT h.hope THEN 0
            WHEN s.absent THEN -2
            ELSE -1 END::pg_catalog.int8 AS outcome,
       coalesce(u.tat, t.tat, s.tat, 0) AS tat,
       coalesce(u.started, t.started, s.started, 0) AS started,
       coalesce(u.span, t.span_now, s.span, 0) AS span,
       coalesce(u.used, t.used, s.used, 0) AS used,
       coalesce(u.before, t.before, s.before, 0) AS before,
       coalesce(u.slide, t.slide, s.slide, 0) AS slide,
       coalesce(t.blocked_until, s.blocked_until, 0) AS blocked_until,
       coalesce(t.now, s.now) AS now
  FROM seen AS s
  JOIN hoped AS h ON h.request OPERATOR(pg_catalog.=) s.request
  LEFT JOIN decided AS d ON d.request OPERATOR(pg_catalog.=) s.request
  LEFT JOIN timed AS t ON t.n OPERATOR(pg_catalog.=) s.n
  LEFT JOIN updated AS u ON u.key OPERATOR(pg_catalog.=) t.key
