-- Deletes tokens that no holder can be behind any more, among the $3 rows of fence_mark that follow the key
-- $1, $2.
--
-- Promises: a stale holder is refused as before. A token that is older than one in this table belongs to a
-- session that existed when the newer token was checked in. The table refuses it as long as that session
-- exists, and check.sql refuses it afterwards. So a row is deleted when every session that holds an advisory
-- lock began at least a day after the row was last written; the day allows for clocks that were set back. A
-- session whose start time this role may not see counts as old. Returns how many rows were deleted, how many
-- were examined, and the key of the last examined row.
-- Index: the primary key of fence_mark, for at most $3 rows. pg_locks is read once.
-- Race: a row that is written meanwhile is checked again when it is locked, or skipped; a row that a
-- transaction has locked is skipped until the next sweep.
WITH bound AS MATERIALIZED (
    SELECT least(pg_catalog.min(coalesce(a.backend_start, '-infinity')), pg_catalog.statement_timestamp())
           - interval '24 hours' AS before
      FROM pg_catalog.pg_locks AS l
      LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
     WHERE l.locktype = 'advisory' AND l.granted
       AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d
                          WHERE d.datname = pg_catalog.current_database())
), part AS MATERIALIZED (
    SELECT m.namespace, m.key, m.checked_at
      FROM lockapi.fence_mark AS m
     WHERE (m.namespace, m.key) > ($1::text, $2::text)
     ORDER BY m.namespace, m.key
     LIMIT $3::int8
), old AS MATERIALIZED (
    SELECT o.at
      FROM bound AS b
      JOIN part AS p ON p.checked_at < b.before
     CROSS JOIN LATERAL (
           SELECT m.ctid AS at
             FROM lockapi.fence_mark AS m
            WHERE m.namespace = p.namespace AND m.key = p.key AND m.checked_at < b.before
              FOR UPDATE OF m SKIP LOCKED) AS o
), gone AS (
    DELETE FROM lockapi.fence_mark AS m
     WHERE m.ctid = ANY (ARRAY(SELECT o.at FROM old AS o))
    RETURNING 1
)
SELECT (SELECT pg_catalog.count(*) FROM gone) AS deleted,
       (SELECT pg_catalog.count(*) FROM part) AS seen,
       p.namespace::text, p.key::text
  FROM (SELECT) AS one
  LEFT JOIN LATERAL (
       SELECT p.namespace, p.key FROM part AS p
        ORDER BY p.namespace DESC, p.key DESC LIMIT 1) AS p ON true
