-- Lists the names of jobs that are paused in the queue $2 of the namespace $1, with the microseconds for which they still
-- are: NULL until they are resumed.
--
-- Promises: at most $3 names, in their order, among the first $4; a pause whose time is over is none.
-- Index: paused_name_pkey. Race: none, it only reads; the answer may be old on arrival.
SELECT p.name, (extract(epoch FROM p.paused_until - pg_catalog.statement_timestamp()) * 1000000)::int8 AS left
  FROM (SELECT n.name, n.paused_until
          FROM lockapi.paused_name AS n
         WHERE n.namespace = $1::text AND n.queue = $2::text
         ORDER BY n.namespace, n.queue, n.name
         LIMIT $4::int8) AS p
 WHERE coalesce(p.paused_until > pg_catalog.statement_timestamp(), true)
 ORDER BY p.name
 LIMIT $3::int8
