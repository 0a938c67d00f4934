-- Sets how the groups of a queue are limited: whether in order ($3), at most $4 jobs of a group at once, and of each group $5 in $6
-- nanoseconds, at once $7, one every $8 nanoseconds; -1 does not limit.
--
-- Promises: once it is committed, no later statement admits by what was set before. What is admitted by then stays, and so do
-- the permits that were taken.
-- Index: queue_groups_pkey. Race: the later of two takes effect.
WITH set AS (
    INSERT INTO lockapi.queue_groups AS q (namespace, queue, ordered, most, permits, period, burst, step)
    VALUES ($1::text, $2::text, $3::bool, $4::int8, nullif($5::int8, -1), nullif($6::int8, -1), nullif($7::int8, -1), nullif($8::int8, -1))
    ON CONFLICT (namespace, queue) DO UPDATE
       SET ordered = EXCLUDED.ordered, most = EXCLUDED.most, permits = EXCLUDED.permits, period = EXCLUDED.period,
           burst = EXCLUDED.burst, step = EXCLUDED.step, changed_at = pg_catalog.clock_timestamp()
)
SELECT pg_catalog.count(pg_catalog.pg_notify('lockapi', t.topic::text)) AS told FROM unnest($9::int8[]) AS t (topic)
