-- Deletes rows of leases that ended more than a day ago, among the $4 rows that follow the key $1, $2, $3.
--
-- Promises: no decision changes, because an acquisition treats an ended lease and a missing row alike. In an epoch
-- that is not the first, one that nobody has renewed or released in it stays until its own time to live has passed
-- since the epoch began: whoever had it, unknown to the server, may have it for that long (see acquire.sql).
-- Returns how many rows were deleted, how many were examined, and the key of the last examined row.
-- Index: the primary keys of lease, for at most $4 rows, and of epoch.
-- Race: an acquisition that drew its token before the deletion would have had to wait for a day. A row that
-- was taken meanwhile is checked again when it is locked; a locked row is skipped until the next sweep.
WITH epoch AS MATERIALIZED (
    SELECT e.begun_at, e.waits_from FROM lockapi.epoch AS e WHERE e.one
), part AS MATERIALIZED (
    SELECT l.namespace, l.key, l.slot, l.expires_at
      FROM lockapi.lease AS l
     WHERE (l.key, l.namespace, l.slot) > ($2::text, $1::text, $3::int8)
     ORDER BY l.key, l.namespace, l.slot
     LIMIT $4::int8
), old AS MATERIALIZED (
    SELECT o.at
      FROM part AS p
     CROSS JOIN LATERAL (
           SELECT l.ctid AS at
             FROM lockapi.lease AS l
            WHERE l.namespace = p.namespace AND l.key = p.key AND l.slot = p.slot
              AND l.expires_at < pg_catalog.statement_timestamp() - interval '24 hours'
              AND (l.released_at IS NOT NULL OR l.renewed_at > (SELECT e.begun_at FROM epoch AS e)
                   OR (SELECT e.waits_from FROM epoch AS e) + (l.expires_at - l.renewed_at)
                          <= pg_catalog.statement_timestamp())
              FOR UPDATE OF l SKIP LOCKED) AS o
     WHERE p.expires_at < pg_catalog.statement_timestamp() - interval '24 hours'
), gone AS (
    DELETE FROM lockapi.lease AS l
     WHERE l.ctid = ANY (ARRAY(SELECT o.at FROM old AS o))
    RETURNING 1
)
SELECT (SELECT pg_catalog.count(*) FROM gone) AS deleted,
       (SELECT pg_catalog.count(*) FROM part) AS seen,
       p.namespace::text, p.key::text, p.slot::int8
  FROM (SELECT) AS one
  LEFT JOIN LATERAL (
       SELECT p.namespace, p.key, p.slot FROM part AS p
        ORDER BY p.key DESC, p.namespace DESC, p.slot DESC LIMIT 1) AS p ON true
