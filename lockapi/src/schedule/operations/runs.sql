-- Reads the log of a task, at most $5 of the runs that were due before $4, the latest first.
--
-- Index: task_run_pkey; job_pkey and job_archive_pkey. Race: none, it only reads.
SELECT (extract(epoch FROM l.fire_at) * 1000000)::int8 AS fire_at, l.status, l.job, l.node,
       (extract(epoch FROM l.started_at) * 1000000)::int8 AS started_at,
       (extract(epoch FROM l.completed_at) * 1000000)::int8 AS completed_at,
       l.error, l.token, l.attempt::int8, l.missed, l.fired_by,
       (extract(epoch FROM l.fired_at) * 1000000)::int8 AS fired_at
  FROM lockapi.task_log AS l
 WHERE l.namespace = $1::text AND l.scheduler = $2::text AND l.task = $3::text
   AND l.fire_at < timestamptz 'epoch' + $4::int8 * interval '1 microsecond'
 ORDER BY l.fire_at DESC
 LIMIT $5::int8
