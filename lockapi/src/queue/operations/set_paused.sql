-- Pauses a queue, until it is resumed or for $5 microseconds, or resumes it.
--
-- Promises: once it is committed, no later claim gets a job of a paused queue, until that time has passed on the
-- server. It takes the place of what was set before. The time of the change stays where a queue is paused that was: no
-- job has begun to run in between.
-- Index: queue_pkey. Race: the later of two takes effect.
INSERT INTO lockapi.queue AS q (namespace, name, paused, paused_until)
VALUES ($1::text, $2::text, $3::bool,
        CASE WHEN $5::int8 > 0 THEN pg_catalog.clock_timestamp() + $5::int8 * interval '1 microsecond' END)
ON CONFLICT (namespace, name) DO UPDATE
   SET paused = EXCLUDED.paused, paused_until = EXCLUDED.paused_until,
       changed_at = CASE WHEN q.paused AND EXCLUDED.paused
                              AND coalesce(q.paused_until > pg_catalog.clock_timestamp(), true)
                         THEN q.changed_at ELSE pg_catalog.clock_timestamp() END
RETURNING q.paused,
          (SELECT pg_catalog.count(pg_catalog.pg_notify('lockapi', t.topic::text)) FROM unnest($4::int8[]) AS t (topic)) AS told
