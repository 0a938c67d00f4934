-- Lists rate limits of the namespace $1 whose keys come after $2.
--
-- Promises: at most $3 of them, ordered by key, among the first $4 rows of all namespaces. Times are
-- nanoseconds; those of a window that no longer counts are NULL.
-- Index: the primary key of rate_limit. Race: none, it only reads; the answer may be old on arrival.
WITH part AS MATERIALIZED (
    SELECT l.*
      FROM lockapi.rate_limit AS l
     WHERE l.key > $2::text
     ORDER BY l.key, l.namespace
     LIMIT $4::int8
), clock AS MATERIALIZED (
    SELECT lockapi.clock() AS now
)
SELECT p.key, greatest(c.now - p.at, 0) AS decided, greatest(p.tat - c.now, 0) AS backlog,
       CASE WHEN p.started + 2 * p.span > c.now THEN p.span END AS span, p.used, p.before,
       CASE WHEN p.blocked_until > c.now THEN p.blocked_until - c.now END AS blocked, p.reserved
  FROM part AS p, clock AS c
 WHERE p.namespace = $1::text
 ORDER BY p.key
 LIMIT $3::int8
