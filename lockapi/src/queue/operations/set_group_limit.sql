-- Gives the group $3 a limit of its own ($4), or takes it away: at most $5 of its jobs at once, of which 0 pauses it, and $6 in $7
-- nanoseconds, at once $8, one every $9 nanoseconds; -1 is as in other groups.
--
-- Promises: once it is committed, no later statement admits by what was set before. What is admitted by then stays, and so do
-- the permits that were taken.
-- Where nothing is found, it may have been done by a session that ended while its commit waited for a standby: the
-- statement writes to the WAL, so that its commit waits for that too.
-- Index: group_limit_pkey. Race: the later of two takes effect.
WITH gone AS (
    DELETE FROM lockapi.group_limit AS g
     WHERE NOT $4::bool AND g.namespace = $1::text AND g.queue = $2::text AND g.group_key = $3::text
    RETURNING 1
), set AS (
    INSERT INTO lockapi.group_limit (namespace, queue, group_key, most, permits, period, burst, step)
    SELECT $1::text, $2::text, $3::text, nullif($5::int8, -1), nullif($6::int8, -1), nullif($7::int8, -1), nullif($8::int8, -1),
           nullif($9::int8, -1)
     WHERE $4::bool
    ON CONFLICT (namespace, queue, group_key) DO UPDATE
       SET most = EXCLUDED.most, permits = EXCLUDED.permits, period = EXCLUDED.period, burst = EXCLUDED.burst, step = EXCLUDED.step
)
SELECT (SELECT pg_catalog.count(pg_catalog.pg_logical_emit_message(true, 'lockapi', ''))
          FROM (SELECT) AS x WHERE NOT $4::bool AND NOT EXISTS (SELECT FROM gone))
       + (SELECT pg_catalog.count(pg_catalog.pg_notify('lockapi', t.topic::text)) FROM unnest($10::int8[]) AS t (topic)) AS told
