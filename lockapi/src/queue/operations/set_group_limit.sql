-- Gives the group $3 a limit of its own, $4, of which 0 pauses it; -1 takes it away.
--
-- Promises: once it is committed, no later statement admits by what was set before. What is admitted by then stays.
-- Where nothing is found, it may have been done by a session that ended while its commit waited for a standby: the
-- statement writes to the WAL, so that its commit waits for that too.
-- Index: group_limit_pkey. Race: the later of two takes effect.
WITH gone AS (
    DELETE FROM lockapi.group_limit AS g
     WHERE $4::int8 < 0 AND g.namespace = $1::text AND g.queue = $2::text AND g.group_key = $3::text
    RETURNING 1
), set AS (
    INSERT INTO lockapi.group_limit (namespace, queue, group_key, most)
    SELECT $1::text, $2::text, $3::text, $4::int8
     WHERE $4::int8 >= 0
    ON CONFLICT (namespace, queue, group_key) DO UPDATE SET most = EXCLUDED.most
)
SELECT $4::int8
       + (SELECT pg_catalog.count(pg_catalog.pg_logical_emit_message(true, 'lockapi', '')) * 0
            FROM (SELECT) AS x WHERE $4::int8 < 0 AND NOT EXISTS (SELECT FROM gone)) AS most,
       (SELECT pg_catalog.count(pg_catalog.pg_notify('lockapi', t.topic::text)) FROM unnest($5::int8[]) AS t (topic)) AS told
