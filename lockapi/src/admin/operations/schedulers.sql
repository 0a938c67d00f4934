-- Lists the schedulers of the namespace $1 that have tasks and whose names come after $2.
--
-- Promises: at most $3 names, in their order. One lookup finds the next name, however many tasks there are.
-- Index: task_pkey. Race: none, it only reads; the answer may be old on arrival.
WITH RECURSIVE found (name, n) AS (
    SELECT $2::text COLLATE "C", 0::int8
     UNION ALL
    SELECT o.name, f.n + 1
      FROM found AS f
     CROSS JOIN LATERAL (
           SELECT t.scheduler AS name
             FROM lockapi.task AS t
            WHERE t.namespace = $1::text AND t.scheduler > f.name
            ORDER BY t.namespace, t.scheduler
            LIMIT 1) AS o
     WHERE f.n < $3::int8
)
SELECT f.name
  FROM found AS f
 WHERE f.n > 0
 ORDER BY f.n
