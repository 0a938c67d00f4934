-- Cancels the jobs $3 of the queue $2 of the namespace $1 for the reason $4: those that wait, and if $5 those that run.
-- Of these only those with the name $6, in the group $7 and with the tag $8, each unless it is empty.
--
-- Promises: a worker that runs a job loses its delivery; the archive has the job as cancelled, with the
-- reason. Returns how many were cancelled. The action is recorded in the audit log, for each job, in the same transaction.
-- Where nothing is found, it may have been done by a session that ended while its commit waited for a standby: the
-- statement writes to the WAL, so that its commit waits for that too.
-- Index: job_pkey; the collation keeps job_due from fitting.
-- Race: of a completion and a cancellation, the one that locks the row first takes effect. Whether a job runs, and
-- is as it was looked for, is read on the locked row: a push may have replaced it since. Rows that a transaction has locked are skipped and counted.
WITH held AS MATERIALIZED (
    SELECT j.id
      FROM lockapi.job AS j
     WHERE j.id = ANY ($3::int8[])
       AND j.namespace COLLATE "POSIX" = $1::text AND j.queue COLLATE "POSIX" = $2::text
       AND ($5::bool OR coalesce(j.lease_until <= pg_catalog.clock_timestamp(), true))
       AND ($6::text = '' OR (j.name = $6::text) IS TRUE) AND ($7::text = '' OR (j.group_key = $7::text) IS TRUE)
       AND ($8::text = '' OR ($8::text = ANY (pg_catalog.string_to_array(j.headers ->> 'tags', ','))) IS TRUE)
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
           g.priority, g.worker, $4::text, g.namespace, g.queue, g.unique_key, g.name, g.payload, g.task, g.errors, g.group_key, g.headers,
           CASE WHEN g.task IS NULL THEN pg_catalog.clock_timestamp() + interval '168 hours' END
      FROM gone AS g
), logged AS (
    INSERT INTO lockapi.audit (namespace, action, target, reason)
    SELECT $1::text, 'cancel job', g.id || ' (' || g.name || ') of ' || g.queue, $4::text FROM gone AS g
)
SELECT h.n AS cancelled, l.n AS locked,
       CASE WHEN h.n = 0 AND l.n = 0 THEN pg_catalog.pg_logical_emit_message(true, 'lockapi', '') IS NULL END AS written
  FROM (SELECT pg_catalog.count(*) AS n FROM held) AS h
 CROSS JOIN (SELECT pg_catalog.count(*) AS n
               FROM lockapi.job AS j
              WHERE j.id = ANY ($3::int8[]) AND j.id <> ALL (ARRAY(SELECT o.id FROM held AS o))
                AND j.namespace COLLATE "POSIX" = $1::text AND j.queue COLLATE "POSIX" = $2::text
                AND ($5::bool OR coalesce(j.lease_until <= pg_catalog.clock_timestamp(), true))
                AND ($6::text = '' OR (j.name = $6::text) IS TRUE) AND ($7::text = '' OR (j.group_key = $7::text) IS TRUE)
                AND ($8::text = '' OR ($8::text = ANY (pg_catalog.string_to_array(j.headers ->> 'tags', ','))) IS TRUE)) AS l
