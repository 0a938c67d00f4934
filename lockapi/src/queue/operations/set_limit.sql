-- Limits a queue ($3), or takes its limit away: at most $4 of its jobs run at once, and $5 are claimed in $6 nanoseconds, at once $7, one
-- every $8 nanoseconds; -1 does not limit.
--
-- Promises: once it is committed, no later claim takes more, by the jobs that run then and the permits that were taken. What
-- runs by then goes on. It waits for a claim that is under way.
-- Where nothing is found to take away, it may have been done by a session that ended while its commit waited for a standby:
-- the statement writes to the WAL, so that its commit waits for that too.
-- Index: queue_limit_pkey and queue_pkey, in this order, as the function does. Race: the later of two takes effect; what finds no limit to take away
-- leaves the row of the queue alone, because a limit may have been set meanwhile; see lockapi.set_queue_limit.
WITH gone AS (
    DELETE FROM lockapi.queue_limit AS l
     WHERE NOT $3::bool AND l.namespace = $1::text AND l.queue = $2::text AND l.name = ''
    RETURNING 1
), unlimited AS (
    UPDATE lockapi.queue AS q SET limited = false
     WHERE NOT $3::bool AND q.namespace = $1::text AND q.name = $2::text AND q.limited
       AND EXISTS (SELECT FROM gone)
)
SELECT (SELECT pg_catalog.count(lockapi.set_queue_limit($1::text, $2::text, nullif($4::int8, -1), nullif($5::int8, -1),
                                                        nullif($6::int8, -1), nullif($7::int8, -1), nullif($8::int8, -1))::text)
          FROM (SELECT) AS x WHERE $3::bool) AS set,
       (SELECT pg_catalog.count(pg_catalog.pg_logical_emit_message(true, 'lockapi', ''))
          FROM (SELECT) AS x WHERE NOT $3::bool AND NOT EXISTS (SELECT FROM gone))
       +
       (SELECT pg_catalog.count(pg_catalog.pg_notify('lockapi', t.topic::text)) FROM unnest($9::int8[]) AS t (topic)) AS told
