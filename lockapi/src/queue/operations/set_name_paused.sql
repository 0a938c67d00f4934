-- Pauses the jobs of the name $3 in a queue, until they are resumed or for $5 microseconds, or resumes them.
--
-- Promises: once it is committed, no later claim gets a job of a paused name, until that time has passed on the
-- server. It takes the place of what was set before.
-- Where nothing is found to resume, it may have been done by a session that ended while its commit waited for a standby:
-- the statement writes to the WAL, so that its commit waits for that too.
-- Index: paused_name_pkey. Race: the later of two takes effect.
WITH gone AS (
    DELETE FROM lockapi.paused_name AS p
     WHERE NOT $4::bool AND p.namespace = $1::text AND p.queue = $2::text AND p.name = $3::text
    RETURNING 1
), set AS (
    INSERT INTO lockapi.paused_name (namespace, queue, name, paused_until)
    SELECT $1::text, $2::text, $3::text,
           CASE WHEN $5::int8 > 0 THEN pg_catalog.clock_timestamp() + $5::int8 * interval '1 microsecond' END
     WHERE $4::bool
    ON CONFLICT (namespace, queue, name) DO UPDATE
       SET paused_until = EXCLUDED.paused_until, changed_at = pg_catalog.clock_timestamp()
)
SELECT $4::bool AS paused,
       (SELECT pg_catalog.count(pg_catalog.pg_logical_emit_message(true, 'lockapi', ''))
          FROM (SELECT) AS x WHERE NOT $4::bool AND NOT EXISTS (SELECT FROM gone))
       +
       (SELECT pg_catalog.count(pg_catalog.pg_notify('lockapi', t.topic::text)) FROM unnest($6::int8[]) AS t (topic)) AS told
