-- Refuses all requests for a time; a time of 0 ends a block.
--
-- Promises: the latest request for a key takes effect; what was taken stays taken.
-- Index: the primary key of rate_limit; no indexed column changes, so the update is HOT.
-- Race: rows are written in the order of their keys.
WITH want AS MATERIALIZED (
    SELECT DISTINCT ON (w.namespace COLLATE "C", w.key COLLATE "C") w.*
      FROM unnest($1::text[], $2::text[], $3::int8[])
           WITH ORDINALITY AS w (namespace, key, length, n)
     ORDER BY w.namespace COLLATE "C", w.key COLLATE "C", w.n DESC
), blocked AS (
    INSERT INTO lockapi.rate_limit AS l (namespace, key, at, blocked_until)
    SELECT w.namespace, w.key, lockapi.clock(), lockapi.clock() + w.length
      FROM want AS w
     ORDER BY w.namespace COLLATE "C", w.key COLLATE "C"
    ON CONFLICT (namespace, key) DO UPDATE
       SET blocked_until = lockapi.clock() + (excluded.blocked_until - excluded.at)
    RETURNING 1
)
SELECT w.n, (SELECT pg_catalog.count(*) FROM blocked) >= 0 AS done
  FROM unnest($1::text[], $2::text[], $3::int8[]) WITH ORDINALITY AS w (namespace, key, length, n)
