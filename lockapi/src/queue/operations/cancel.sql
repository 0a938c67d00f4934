-- Cancels jobs, waiting or running: they go to the archive as cancelled.
--
-- Promises: a running job loses its delivery; the completion of that delivery is then refused. Returns the
-- numbers of the cancelled jobs, and of those whose rows were locked and that have to be retried.
-- Where nothing is found, it may have been done by a session that ended while its commit waited for a standby: the
-- statement writes to the WAL, so that its commit waits for that too.
-- Index: job_pkey; the collation keeps job_due from fitting.
-- Race: of a completion and a cancellation, the one that locks the row first takes effect. Rows that are
-- being claimed, or that a transaction has locked, are skipped and reported.
WITH there AS MATERIALIZED (
    SELECT j.id
      FROM lockapi.job AS j
     WHERE j.id = ANY ($3::int8[])
       AND j.namespace COLLATE "POSIX" = $1::text AND j.queue COLLATE "POSIX" = $2::text
), held AS MATERIALIZED (
    SELECT j.id
      FROM lockapi.job AS j
     WHERE j.id = ANY (ARRAY(SELECT t.id FROM there AS t))
     ORDER BY j.id + 0
       FOR UPDATE OF j SKIP LOCKED
), gone AS (
    DELETE FROM lockapi.job AS j
     WHERE j.id = ANY (ARRAY(SELECT h.id FROM held AS h))
    RETURNING j.*
), kept AS (
    INSERT INTO lockapi.job_archive (id, token, status, run_at, created_at, started_at, attempt, max_attempts,
                                     priority, worker, error, namespace, queue, unique_key, name, payload, task,
                                     errors, group_key, headers, expires_at)
    SELECT g.id, g.token, 'cancelled', coalesce(g.due_at, g.run_at), g.created_at, g.started_at, g.attempt, g.max_attempts,
           g.priority, g.worker, g.error, g.namespace, g.queue, g.unique_key, g.name, g.payload, g.task,
           g.errors, g.group_key, g.headers,
           CASE WHEN g.task IS NULL AND $4::int8 >= 0
                THEN pg_catalog.clock_timestamp() + $4::int8 * interval '1 microsecond' END
      FROM gone AS g
)
SELECT CASE WHEN pg_catalog.count(*) < pg_catalog.cardinality($3::int8[])
                 AND (SELECT pg_catalog.pg_logical_emit_message(true, 'lockapi', '')) IS NULL THEN NULL
            ELSE pg_catalog.array_agg(g.id ORDER BY g.id) END AS cancelled,
       ARRAY(SELECT t.id FROM there AS t WHERE NOT EXISTS (SELECT FROM held AS h WHERE h.id = t.id)
              ORDER BY t.id) AS locked
  FROM gone AS g
