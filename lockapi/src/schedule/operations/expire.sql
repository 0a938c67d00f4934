-- Ends runs whose delivery has exceeded the timeout of their task: they are recorded as failed.
--
-- Promises: the delivery is revoked, so that a late completion of it is refused; the task is free for
-- its next run.
-- Index: job_task, which has the jobs of the tasks of one queue together; task_pkey and job_pkey.
-- Race: a completion that locks the job first takes effect; a locked job is checked in the next round; the
-- time is checked on the locked row.
WITH late AS MATERIALIZED (
    SELECT j.id
      FROM lockapi.job AS j
      JOIN lockapi.task AS t ON t.namespace = $1::text AND t.scheduler = $2::text AND t.name = j.task
     WHERE j.namespace || '' = $1::text AND j.queue || '' = $2::text AND j.task IS NOT NULL
       AND j.token IS NOT NULL AND t.timeout > 0
       AND j.started_at <= pg_catalog.clock_timestamp() - t.timeout * interval '1 microsecond'
     ORDER BY j.id + 0
       FOR UPDATE OF j SKIP LOCKED
), gone AS (
    DELETE FROM lockapi.job AS j
     WHERE j.id = ANY (ARRAY(SELECT l.id FROM late AS l))
    RETURNING j.*
), dead AS (
    INSERT INTO lockapi.job_archive (id, token, status, run_at, created_at, started_at, attempt, max_attempts,
                                     priority, worker, error, namespace, queue, unique_key, name, payload, task, errors)
    SELECT g.id, g.token, 'failed', g.run_at, g.created_at, g.started_at, g.attempt, g.max_attempts,
           g.priority, g.worker, 'it lasted longer than its timeout', g.namespace, g.queue,
           g.unique_key, g.name, g.payload, g.task,
           coalesce(CASE WHEN pg_catalog.jsonb_array_length(g.errors) >= 10 THEN g.errors - 0 ELSE g.errors END, '[]')
               || pg_catalog.jsonb_build_object(
                      'attempt', g.attempt, 'at', (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::int8,
                      'worker', g.worker, 'error', pg_catalog."left"('it lasted longer than its timeout', 1000))
      FROM gone AS g
)
SELECT pg_catalog.count(*) AS expired FROM gone
