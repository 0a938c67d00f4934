-- Reads the state of a scheduler: which tasks are due, and whether there is anything else to do.
--
-- Promises: one row for each task that is enabled and due, or whose next time was computed before the clock
-- was set back by more than a minute; at most $3 of them, those that have been due for the longest first, and
-- where $5 is a name only those behind the task that was due at $4. A
-- last row without a name returns when the next task is due, whether a run has exceeded the timeout of its
-- task, and whether a run that is held back can be released. Every row has the time of the server.
-- Index: task_pkey, which has one scheduler's tasks together; job_task and job_unique; task_run_held.
-- Race: none, it only reads. A request that acts on the result names what was read.
SELECT t.name, t.version,
       (extract(epoch FROM t.next_at) * 1000000)::int8 AS next_at,
       (extract(epoch FROM pg_catalog.statement_timestamp()) * 1000000)::int8 AS now,
       t.every, t.cron, t.zone, t.misfire, t.misfire_most,
       NULL::bool AS overdue, NULL::bool AS releasable
  FROM (SELECT d.*
          FROM lockapi.task AS d
         WHERE d.namespace = $1::text AND d.scheduler = $2::text AND d.enabled
           AND (d.next_at <= pg_catalog.statement_timestamp()
                OR (d.next_at IS NOT NULL AND d.changed_at > pg_catalog.statement_timestamp() + interval '1 minute'))
           AND ($5::text = '' OR (d.next_at, d.name) > (timestamptz 'epoch' + $4::int8 * interval '1 microsecond', $5::text))
         ORDER BY d.next_at, d.name
         LIMIT $3::int8) AS t
 UNION ALL
SELECT NULL, NULL,
       (SELECT (extract(epoch FROM pg_catalog.min(t.next_at)) * 1000000)::int8
          FROM lockapi.task AS t
         WHERE t.namespace = $1::text AND t.scheduler = $2::text AND t.enabled
           AND t.next_at > pg_catalog.statement_timestamp()),
       (extract(epoch FROM pg_catalog.statement_timestamp()) * 1000000)::int8,
       NULL, NULL, NULL, NULL, NULL,
       -- Where no task has a timeout the runs that wait, which may be many, are not read.
       CASE WHEN EXISTS (SELECT
                           FROM lockapi.task AS t
                          WHERE t.namespace = $1::text AND t.scheduler = $2::text AND t.timeout > 0)
            THEN EXISTS (SELECT
                           FROM lockapi.job AS j
                           JOIN lockapi.task AS t ON t.namespace = $1::text AND t.scheduler = $2::text AND t.name = j.task
                          WHERE j.namespace || '' = $1::text AND j.queue || '' = $2::text AND j.task IS NOT NULL
                            AND j.token IS NOT NULL AND t.timeout > 0
                            AND j.started_at <= pg_catalog.statement_timestamp() - t.timeout * interval '1 microsecond')
            ELSE false END,
       EXISTS (SELECT
                 FROM lockapi.task_run AS r
                 JOIN lockapi.task AS t ON t.namespace = $1::text AND t.scheduler = $2::text AND t.name = r.task
                WHERE r.namespace COLLATE "POSIX" = $1::text AND r.scheduler COLLATE "POSIX" = $2::text
                  AND r.decided = 'held' AND t.enabled
                  AND NOT EXISTS (SELECT FROM lockapi.job AS j
                                   WHERE j.namespace COLLATE "POSIX" = $1::text AND j.queue COLLATE "POSIX" = $2::text
                                     AND j.unique_key = 'task/' || r.task OFFSET 0))
