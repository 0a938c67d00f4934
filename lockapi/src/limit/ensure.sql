-- Creates rows for keys that have none.
--
-- Promises: afterwards each key has a row, which is equivalent to no row until it is used.
-- Index: the primary key of rate_limit.
-- Race: two statements that create one row conflict at ON CONFLICT DO NOTHING; rows are created in the order
-- of their keys.
WITH want AS MATERIALIZED (
    SELECT w.*
      FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]), pg_catalog.unnest($2::pg_catalog.text[]))
           WITH ORDINALITY AS w (namespace, key, n)
), made AS (
    INSERT INTO lockapi.rate_limit (namespace, key)
    SELECT w.namespace, w.key
      FROM want AS w
     ORDER BY w.namespace COLLATE pg_catalog."C", w.key COLLATE pg_catalog."C"
    ON CONFLICT (namespace, key) DO NOTHING
    RETURNING 1
)
SELECT w.n, (SELECT pg_catalog.count(*) FROM made) OPERATOR(pg_catalog.>=) 0 AS there
  FROM want AS w
