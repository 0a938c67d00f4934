-- Deletes rows that have meant the same as no row for a minute, at most $1 of them.
--
-- Promises: no decision changes.
-- Index: none helps, it reads the whole table; it runs seldom.
-- Race: a row that is used meanwhile is judged anew when it is locked; one that somebody has locked
-- is left for the next time.
WITH idle AS MATERIALIZED (
    SELECT l.namespace, l.key
      FROM lockapi.rate_limit AS l
     WHERE l.tat < lockapi.clock() - 60000000000
       AND l.at < lockapi.clock() - 60000000000
       AND (l.blocked_until IS NULL OR l.blocked_until < lockapi.clock())
       AND l.reserved IS NULL
     LIMIT $1::int8
       FOR UPDATE OF l SKIP LOCKED
), gone AS (
    DELETE FROM lockapi.rate_limit AS l
     USING idle AS i
     WHERE l.namespace = i.namespace AND l.key = i.key
    RETURNING 1
)
SELECT pg_catalog.count(*) AS deleted FROM gone
