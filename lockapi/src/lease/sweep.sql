-- Deletes rows of leases that ended more than a day ago, at most $1 of them.
--
-- Promises: no decision changes, because an ended lease and no row are the same to a taker.
-- Index: none, it scans the table; it runs seldom.
-- Race: a taker that drew its token before the deletion would have had to wait for a day. Rows
-- that somebody has locked are left for the next time.
WITH old AS MATERIALIZED (
    SELECT l.namespace, l.key, l.slot
      FROM lockapi.lease AS l
     WHERE l.expires_at < pg_catalog.statement_timestamp() - interval '1 day'
     LIMIT $1::int8
       FOR UPDATE OF l SKIP LOCKED
), gone AS (
    DELETE FROM lockapi.lease AS l
     USING old AS o
     WHERE l.namespace = o.namespace AND l.key = o.key AND l.slot = o.slot
    RETURNING 1
)
SELECT pg_catalog.count(*) AS deleted FROM gone
