-- Deletes rows that have meant the same as no row for a minute, among the $3 rows that follow the key $1,
-- $2.
--
-- Promises: no decision changes, by whatever quota: of a window nothing counts after twice the time of
-- the longest that took in it. Answers how many rows were deleted, how many were looked at, and the
-- last of those.
-- Index: the primary key of rate_limit, so many rows of it.
-- Race: a row that is used meanwhile is judged anew when it is locked; one that somebody has locked
-- is left for the next time.
WITH part AS MATERIALIZED (
    SELECT l.namespace, l.key, l.tat, l.started + 2 * l.span AS forgotten
      FROM lockapi.rate_limit AS l
     WHERE (l.key, l.namespace) > ($2::text, $1::text)
     ORDER BY l.key, l.namespace
     LIMIT $3::int8
), idle AS MATERIALIZED (
    SELECT i.place
      FROM part AS p
     CROSS JOIN LATERAL (
           SELECT l.ctid AS place
             FROM lockapi.rate_limit AS l
            WHERE l.namespace = p.namespace AND l.key = p.key
              AND l.tat < lockapi.clock() - 60000000000
              AND l.at < lockapi.clock() - 60000000000
              AND (l.started IS NULL OR l.started + 2 * l.span < lockapi.clock() - 60000000000)
              AND (l.blocked_until IS NULL OR l.blocked_until < lockapi.clock())
              AND l.reserved = 0
              FOR UPDATE OF l SKIP LOCKED) AS i
     WHERE greatest(p.tat, p.forgotten) < lockapi.clock() - 60000000000
), gone AS (
    DELETE FROM lockapi.rate_limit AS l
     WHERE l.ctid = ANY (ARRAY(SELECT i.place FROM idle AS i))
    RETURNING 1
)
SELECT (SELECT pg_catalog.count(*) FROM gone) AS deleted,
       (SELECT pg_catalog.count(*) FROM part) AS seen,
       p.namespace::text, p.key::text
  FROM (SELECT) AS one
  LEFT JOIN LATERAL (
       SELECT p.namespace, p.key FROM part AS p
        ORDER BY p.key DESC, p.namespace DESC LIMIT 1) AS p ON true
