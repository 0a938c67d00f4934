-- Puts dead letters back into their queue, at most $4 of them: those numbered in $3, or the oldest
-- if there are no numbers.
--
-- Promises: each is due at once, with all its attempts ahead of it and the error of its last one.
-- One whose unique key another job has by now stays where it is.
-- Index: job_archive_failed, job_archive_pkey, job_unique, and task_run_job.
-- Race: of two that redrive the same letter the second skips it. A job of the same unique key that
-- is pushed meanwhile makes the statement fail, which changes nothing.
WITH held AS MATERIALIZED (
    SELECT a.id
      FROM lockapi.job_archive AS a
     WHERE a.namespace = $1::text AND a.queue = $2::text AND a.status = 'failed'
       AND (pg_catalog.cardinality($3::int8[]) = 0 OR a.id = ANY ($3::int8[]))
       AND NOT EXISTS (SELECT FROM lockapi.job AS j
                        WHERE j.namespace = a.namespace AND j.queue = a.queue AND j.unique_key = a.unique_key)
     ORDER BY a.id
     LIMIT $4::int8
       FOR UPDATE OF a SKIP LOCKED
), one AS MATERIALIZED (
    SELECT a.id, a.unique_key IS NULL
                 OR pg_catalog.row_number() OVER (PARTITION BY a.unique_key ORDER BY a.id) = 1 AS first
      FROM lockapi.job_archive AS a
      JOIN held AS h ON h.id = a.id
), back AS (
    DELETE FROM lockapi.job_archive AS a
     USING one AS o
     WHERE o.first AND a.id = o.id
    RETURNING a.*
), pushed AS (
    INSERT INTO lockapi.job (id, run_at, created_at, max_attempts, priority, worker, error, namespace, queue,
                             unique_key, name, payload, task)
    SELECT b.id, pg_catalog.clock_timestamp(), b.created_at, b.max_attempts, b.priority, b.worker, b.error,
           b.namespace, b.queue, b.unique_key, b.name, b.payload,
           (SELECT r.task FROM lockapi.task_run AS r WHERE r.job = b.id)
      FROM back AS b
    RETURNING id
)
SELECT pg_catalog.count(*) AS redriven,
       (SELECT pg_catalog.count(pg_catalog.pg_notify('lockapi', t.topic::text)) FROM unnest($5::int8[]) AS t (topic)) AS told
  FROM pushed
