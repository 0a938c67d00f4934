-- Creates rows for keys that have none.
--
-- Promises: afterwards each key has a row, which means the same as none until it is used.
-- Index: the primary key of rate_limit.
-- Race: two that create one row meet at ON CONFLICT DO NOTHING; rows are created in the order of
-- their keys.
WITH made AS (
    INSERT INTO lockapi.rate_limit (namespace, key)
    SELECT w.namespace, w.key
      FROM unnest($1::text[], $2::text[]) AS w (namespace, key)
     ORDER BY w.namespace, w.key
    ON CONFLICT (namespace, key) DO NOTHING
    RETURNING 1
)
SELECT w.n, (SELECT pg_catalog.count(*) FROM made) >= 0 AS there
  FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS w (namespace, key, n)
