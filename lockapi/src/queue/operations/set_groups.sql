-- Sets how the groups of a queue are limited: at most $3 jobs of a group at once, and whether in order.
--
-- Promises: once it is committed, no later statement admits by what was set before. What is admitted by then stays.
-- Index: queue_groups_pkey. Race: the later of two takes effect.
INSERT INTO lockapi.queue_groups AS q (namespace, queue, most, ordered)
VALUES ($1::text, $2::text, $3::int8, $4::bool)
ON CONFLICT (namespace, queue) DO UPDATE
   SET most = EXCLUDED.most, ordered = EXCLUDED.ordered, changed_at = pg_catalog.clock_timestamp()
RETURNING q.most::int8 AS most,
          (SELECT pg_catalog.count(pg_catalog.pg_notify('lockapi', t.topic::text)) FROM unnest($5::int8[]) AS t (topic)) AS told
