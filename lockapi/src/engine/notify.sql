-- Sends a notification for each topic in $1 to every session that runs listen.sql.
--
-- Promises: a topic that is named several times is sent once; returns how many were sent. They are delivered
-- when the transaction commits, and not at all when it rolls back.
-- Index: none. Race: none, but each transaction that sends holds a lock of the whole cluster while it
-- commits: send few, and many topics at once. This one commits asynchronously.
WITH sent AS MATERIALIZED (
    SELECT pg_catalog.set_config('synchronous_commit', 'off', true)
               || pg_catalog.pg_notify('lockapi', t.topic::text)::text AS done
      FROM (SELECT DISTINCT a.topic FROM unnest($1::int8[]) AS a (topic)) AS t
)
SELECT pg_catalog.count(s.done) AS topics
  FROM sent AS s
