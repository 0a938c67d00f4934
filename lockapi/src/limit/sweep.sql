-- Deletes rows that have been equivalent to no row for a minute, among the $3 rows that follow the key $1,
-- $2.
--
-- Promises: no decision changes, whatever the quota: nothing in a window counts after twice the length of the
-- longest quota that took from it. Returns how many rows were deleted, how many were examined, and the key of
-- the last examined row.
-- Index: the primary key of rate_limit, for at most $3 rows.
-- Race: a row that is used meanwhile is checked again when it is locked; a locked row is skipped until the
-- next sweep.
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
