-- Adds a task, or changes the one of that name.
--
-- Promises: a task that is set again with the same values is not changed. It keeps its next due time unless
-- its interval, expression or zone changes; a disabled task stays disabled.
-- Index: task_pkey.
-- Race: of two that set the same task, the later takes effect. A change raises the version, so no node fires
-- by the old expression.
INSERT INTO lockapi.task AS t (next_at, every, timeout, misfire, misfire_most, overlap, max_attempts, priority,
                               namespace, scheduler, name, cron, zone, job, payload)
VALUES (CASE WHEN $4::int8 >= 0 THEN timestamptz 'epoch' + $4::int8 * interval '1 microsecond' END,
        nullif($5::int8, 0), $6::int8, $7::int8, $8::int8, $9::int8, $10::int8, $11::int8, $1::text, $2::text, $3::text,
        nullif($12::text, ''), nullif($13::text, ''), $14::text, $15::text::json)
ON CONFLICT (namespace, scheduler, name) DO UPDATE
   SET next_at = CASE WHEN (t.every, t.cron, t.zone) IS DISTINCT FROM (excluded.every, excluded.cron, excluded.zone)
                      THEN excluded.next_at ELSE t.next_at END,
       version = t.version + 1, changed_at = pg_catalog.clock_timestamp(),
       every = excluded.every, cron = excluded.cron, zone = excluded.zone, timeout = excluded.timeout,
       misfire = excluded.misfire, misfire_most = excluded.misfire_most, overlap = excluded.overlap,
       max_attempts = excluded.max_attempts, priority = excluded.priority, job = excluded.job,
       payload = excluded.payload
 WHERE (t.every, t.cron, t.zone, t.timeout, t.misfire, t.misfire_most, t.overlap, t.max_attempts, t.priority, t.job,
        t.payload::text)
    IS DISTINCT FROM
       (excluded.every, excluded.cron, excluded.zone, excluded.timeout, excluded.misfire, excluded.misfire_most,
        excluded.overlap, excluded.max_attempts, excluded.priority, excluded.job, excluded.payload::text)
RETURNING (SELECT pg_catalog.count(pg_catalog.pg_notify('lockapi', x.topic::text)) FROM unnest($16::int8[]) AS x (topic)) AS told
