-- Deletes rows that have been equivalent to no row for a minute, among the $3 rows that follow the key $1,
-- $2.
--
-- Promises: no decision changes, whatever the quota: nothing in a window counts after twice the length of the
-- longest quota that took from it. Reservations of a row go with it: they expired a minute ago, and nobody has asked
-- for the key since. Returns how many rows were deleted, how many were examined, and the key of
-- the last examined row.
-- Index: the primary key of rate_limit, for at most $3 rows; rate_reservation_due, for at most 10,000 reservations: rows with
-- more are left to the next sweep.
-- Race: a row that is used meanwhile is checked again when it is locked; a locked row is skipped until the
-- next sweep. Whoever reserves or ends a reservation has the row locked, and changes it.
WITH part AS MATERIALIZED (
    SELECT l.namespace, l.key, l.tat, l.at, l.reserved, l.started + 2 * l.span AS forgotten
      FROM lockapi.rate_limit AS l
     WHERE (l.key, l.namespace) > ($2::text, $1::text)
     ORDER BY l.key, l.namespace
     LIMIT $3::int8
), idle AS MATERIALIZED (
    SELECT p.namespace, p.key, p.reserved, i.place
      FROM part AS p
     CROSS JOIN LATERAL (
           SELECT l.ctid AS place
             FROM lockapi.rate_limit AS l
            WHERE l.namespace = p.namespace AND l.key = p.key
              AND l.tat < lockapi.clock() - 60000000000
              AND l.at < lockapi.clock() - 60000000000
              AND (l.started IS NULL OR l.started + 2 * l.span < lockapi.clock() - 60000000000)
              AND (l.blocked_until IS NULL OR l.blocked_until < lockapi.clock())
              AND l.at = p.at AND l.reserved = p.reserved
              AND (l.reserved = 0
                   OR NOT EXISTS (SELECT
                                    FROM lockapi.rate_reservation AS r
                                   WHERE r.namespace = p.namespace AND r.key = p.key
                                     AND r.expires >= lockapi.clock() - 60000000000))
              FOR UPDATE OF l SKIP LOCKED) AS i
     WHERE greatest(p.tat, p.forgotten) < lockapi.clock() - 60000000000
), chosen AS MATERIALIZED (
    SELECT s.*
      FROM (SELECT i.*, pg_catalog.sum(i.reserved) OVER (ORDER BY i.key, i.namespace) AS until_here FROM idle AS i) AS s
     WHERE s.until_here <= 10000
), expired AS (
    DELETE FROM lockapi.rate_reservation AS r
     WHERE r.ctid = ANY (ARRAY(SELECT o.place
                                 FROM chosen AS s
                                CROSS JOIN LATERAL (
                                      SELECT r.ctid AS place
                                        FROM lockapi.rate_reservation AS r
                                       WHERE r.namespace = s.namespace AND r.key = s.key
                                      OFFSET 0) AS o
                                WHERE s.reserved > 0))
), gone AS (
    DELETE FROM lockapi.rate_limit AS l
     WHERE l.ctid = ANY (ARRAY(SELECT s.place FROM chosen AS s))
    RETURNING 1
)
SELECT (SELECT pg_catalog.count(*) FROM gone) AS deleted,
       (SELECT pg_catalog.count(*) FROM part) AS seen,
       p.namespace::text, p.key::text
  FROM (SELECT) AS one
  LEFT JOIN LATERAL (
       SELECT p.namespace, p.key FROM part AS p
        ORDER BY p.key DESC, p.namespace DESC LIMIT 1) AS p ON true
