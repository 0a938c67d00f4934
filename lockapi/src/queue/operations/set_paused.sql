-- Pauses or resumes a queue.
--
-- Promises: once it is committed, no later claim gets a job of a paused queue.
-- Index: queue_pkey. Race: the later of two takes effect.
INSERT INTO lockapi.queue AS q (namespace, name, paused)
VALUES ($1::text, $2::text, $3::bool)
ON CONFLICT (namespace, name) DO UPDATE
   SET paused = EXCLUDED.paused, changed_at = pg_catalog.clock_timestamp()
RETURNING q.paused,
          (SELECT pg_catalog.count(pg_catalog.pg_notify('lockapi', t.topic::text)) FROM unnest($4::int8[]) AS t (topic)) AS told
