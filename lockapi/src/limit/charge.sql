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
      FROM unnest($1::int8[], $2::text[], $3::text[], $4::int8[], $5::bool[], $6::int8[], $7::int8[],
                  $8::int8[], $9::int8[])
           WITH ORDINALITY AS w (request, namespace, key, length, sliding, price, depth, id, ttl, n)
     WHERE (SELECT CASE WHEN $10::bool
                        THEN pg_catalog.set_config('synchronous_commit', 'off', true) <> ''
                        ELSE true END)
), looked AS MATERIALIZED (
    SELECT w.*, l.key IS NULL AS absent, l.tat, l.started, l.used, l.before, l.blocked_until, l.due,
           c.now
      FROM want AS w
      CROSS JOIN (SELECT lockapi.clock() AS now OFFSET 0) AS c
      LEFT JOIN LATERAL (
               SELECT r.*
                 FROM lockapi.rate_limit AS r
                WHERE r.namespace = w.namespace AND r.key = w.key
               OFFSET 0) AS l ON true
), seen AS MATERIALIZED (
    SELECT k.*, coalesce(k.due <= k.now, false) AS overdue,
           k.absent
           OR lockapi.limit_room(k.tat, k.started, k.used, k.before, k.blocked_until, k.length,
                                 k.sliding, k.depth, k.now) >= k.price
           OR (k.length = 0 AND k.tat > k.now + k.depth) AS fits
      FROM looked AS k
), hoped AS MATERIALIZED (
    SELECT s.*, bool_and(s.fits AND NOT s.overdue) OVER (PARTITION BY s.request) AS hope,
           bool_or(s.absent) OVER (PARTITION BY s.request) AS incomplete
      FROM seen AS s
), locked AS MATERIALIZED (
    SELECT h.n, h.request, h.namespace, h.key, h.length, h.sliding, h.price, h.depth, h.id, h.ttl,
           l.tat, l.started, l.used, l.before, l.blocked_until, l.due
      FROM hoped AS h
      JOIN lockapi.rate_limit AS l ON l.namespace = h.namespace AND l.key = h.key
     WHERE h.hope AND NOT h.incomplete
     ORDER BY h.namespace, h.key
       FOR UPDATE OF l
), timed AS MATERIALIZED (
    SELECT k.*, c.now,
           coalesce(c.now >= k.started AND c.now < k.started + k.length, false) AS same,
           coalesce(k.sliding AND c.now >= k.started + k.length
                    AND c.now < k.started + 2 * k.length, false) AS next,
           lockapi.limit_room(k.tat, k.started, k.used, k.before, k.blocked_until, k.length,
                              k.sliding, k.depth, c.now) AS room
      FROM locked AS k
      CROSS JOIN (SELECT lockapi.clock() AS now FROM (SELECT count(*) FROM locked) AS l OFFSET 0) AS c
), judged AS MATERIALIZED (
    SELECT t.*, t.length = 0 AND t.tat > t.now + t.depth AS beyond,
           bool_and(t.room >= t.price AND coalesce(t.due > t.now, true)) OVER (PARTITION BY t.request)
           AND count(*) OVER (PARTITION BY t.request)
             = (SELECT count(*) FROM want AS w WHERE w.request = t.request) AS admitted
      FROM timed AS t
), updated AS (
    UPDATE lockapi.rate_limit AS l
       SET tat = CASE WHEN NOT j.admitted THEN j.now + j.depth
                      WHEN j.length = 0
                      THEN greatest(j.now, least(j.tat, j.now + j.depth)) + j.price
                      ELSE CASE WHEN j.same THEN j.started
                                WHEN j.next THEN j.started + j.length
                                ELSE j.now END
                           + CASE WHEN j.sliding THEN 2 * j.length ELSE j.length END END,
           taken = CASE WHEN j.admitted THEN 1 ELSE 0 END,
           at = j.now,
           started = CASE WHEN NOT j.admitted OR j.length = 0 OR j.same THEN j.started
                          WHEN j.next THEN j.started + j.length
                          ELSE j.now END,
           used = CASE WHEN NOT j.admitted OR j.length = 0 THEN j.used
                       WHEN j.same THEN j.used + j.price
                       ELSE j.price END,
           before = CASE WHEN NOT j.admitted OR j.length = 0 OR j.same THEN j.before
                         WHEN j.next THEN j.used
                         ELSE 0 END,
           due = CASE WHEN j.admitted AND j.id <> 0 THEN least(l.due, j.now + j.ttl) ELSE l.due END,
           reserved = CASE WHEN j.admitted AND j.id <> 0
                           THEN l.reserved || ARRAY[j.id, j.now, j.price, j.length, j.now + j.ttl]
                           ELSE l.reserved END
      FROM judged AS j
     WHERE l.namespace = j.namespace AND l.key = j.key AND (j.admitted OR j.beyond)
    RETURNING j.n, l.tat, l.started, l.used, l.before
)
SELECT h.n,
       CASE WHEN j.admitted THEN 1
            WHEN j.due <= j.now THEN -3
            WHEN j.n IS NOT NULL THEN 0
            WHEN h.overdue THEN -3
            WHEN NOT h.hope THEN 0
            WHEN h.absent THEN -2
            ELSE -1 END::int8 AS outcome,
       coalesce(u.tat, j.tat, h.tat, 0) AS tat,
       coalesce(u.started, j.started, h.started, 0) AS started,
       coalesce(u.used, j.used, h.used, 0) AS used,
       coalesce(u.before, j.before, h.before, 0) AS before,
       coalesce(j.blocked_until, h.blocked_until, 0) AS blocked_until,
       coalesce(j.now, h.now) AS now
  FROM hoped AS h
  LEFT JOIN judged AS j ON j.n = h.n
  LEFT JOIN updated AS u ON u.n = h.n
