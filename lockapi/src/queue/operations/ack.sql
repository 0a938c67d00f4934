-- Completes deliveries.
--
-- Promises: a job is completed only by the token of its latest delivery; once.
-- Index: job_pkey.
-- Race: a claim that took the job over first has changed its token, which is looked at again on the
-- locked row; of two completions of one delivery the second finds no row.
WITH done AS (
    DELETE FROM lockapi.job AS j
     USING unnest($1::int8[], $2::int8[], $3::bool[]) AS w (id, token, archive)
     WHERE j.id = w.id AND j.token = w.token
    RETURNING j.*, w.archive
), kept AS (
    INSERT INTO lockapi.job_archive (id, token, status, run_at, created_at, started_at, attempt, max_attempts,
                                     priority, worker, error, namespace, queue, unique_key, name, payload)
    SELECT d.id, d.token, 'completed', d.run_at, d.created_at, d.started_at, d.attempt, d.max_attempts,
           d.priority, d.worker, d.error, d.namespace, d.queue, d.unique_key, d.name, d.payload
      FROM done AS d
     WHERE d.archive OR d.task IS NOT NULL
)
SELECT pg_catalog.array_agg(d.id) AS completed FROM done AS d
