-- Moves dead letters back into their queue: the $5 oldest of those with a larger number than $4, and of those numbered in $3
-- unless there are no numbers.
--
-- Promises: each is due at once, with its headers, all its attempts available again and the error of its last one. They
-- are due at the same time, so the order of their numbers is kept. Those with a group are parked. A dead letter whose unique key another job
-- has by now stays where it is. Also returns how many were examined, because only one of two letters with the
-- same unique key is moved; the numbers of those that have to be retried, because their task is being fired; and the number
-- of the last examined one.
-- Where nothing is found, it may have been done by a session that ended while its commit waited for a standby: the
-- statement writes to the WAL, so that its commit waits for that too.
-- Index: job_archive_failed to find, job_archive_pkey to delete, task_pkey, and job_unique; no other
-- fits. The next part starts after the number of this one: a letter that is buried again is not moved again, and entries of
-- moved letters that cannot be vacuumed yet are read once.
-- Race: of two statements that redrive the same letter, the second skips it. If a job with the same unique
-- key is pushed meanwhile, the statement fails and changes nothing. The task of a run is locked and its
-- version is raised, so that a node that read the task before fires nothing in addition to the run.
WITH named AS MATERIALIZED (
    SELECT a.id, a.unique_key, a.task
      FROM lockapi.job_archive AS a
     WHERE a.namespace = $1::text AND a.queue = $2::text AND a.status = 'failed' AND a.id + 0 = ANY ($3::int8[])
       AND a.id + 0 > $4::int8
       AND NOT EXISTS (SELECT FROM lockapi.job AS j
                        WHERE j.namespace COLLATE "POSIX" = a.namespace AND j.queue COLLATE "POSIX" = a.queue
                          AND j.unique_key = a.unique_key OFFSET 0)
     ORDER BY a.id + 0
     LIMIT $5::int8
       FOR UPDATE OF a SKIP LOCKED
), oldest AS MATERIALIZED (
    SELECT a.id, a.unique_key, a.task
      FROM lockapi.job_archive AS a
     WHERE pg_catalog.cardinality($3::int8[]) = 0
       AND a.namespace = $1::text AND a.queue = $2::text AND a.status = 'failed'
       AND a.id + 0 > $4::int8
       AND NOT EXISTS (SELECT FROM lockapi.job AS j
                        WHERE j.namespace COLLATE "POSIX" = a.namespace AND j.queue COLLATE "POSIX" = a.queue
                          AND j.unique_key = a.unique_key OFFSET 0)
     ORDER BY a.id + 0
     LIMIT $5::int8
       FOR UPDATE OF a SKIP LOCKED
), held AS MATERIALIZED (
    SELECT n.* FROM named AS n
     UNION ALL
    SELECT o.* FROM oldest AS o
), tasks AS MATERIALIZED (
    SELECT DISTINCT o.name
      FROM held AS h
     CROSS JOIN LATERAL (
           SELECT t.name
             FROM lockapi.task AS t
            WHERE t.namespace = $1::text AND t.scheduler = $2::text AND t.name = h.task
           OFFSET 0) AS o
     WHERE h.unique_key IS NOT NULL
), locked AS MATERIALIZED (
    SELECT t.name
      FROM lockapi.task AS t
     WHERE t.namespace = $1::text AND t.scheduler = $2::text AND t.name = ANY (ARRAY(SELECT x.name FROM tasks AS x))
     ORDER BY t.name
       FOR UPDATE OF t SKIP LOCKED
), noted AS (
    UPDATE lockapi.task AS t
       SET version = t.version + 1
     WHERE t.namespace = $1::text AND t.scheduler = $2::text AND t.name = ANY (ARRAY(SELECT l.name FROM locked AS l))
), one AS MATERIALIZED (
    SELECT h.id, h.unique_key IS NULL
                 OR pg_catalog.row_number() OVER (PARTITION BY h.unique_key ORDER BY h.id) = 1 AS first,
           h.unique_key IS NOT NULL AND h.task IN (SELECT x.name FROM tasks AS x)
               AND h.task NOT IN (SELECT l.name FROM locked AS l) AS busy
      FROM held AS h
), back AS (
    DELETE FROM lockapi.job_archive AS a
     WHERE a.id = ANY (ARRAY(SELECT o.id FROM one AS o WHERE o.first AND o.busy IS NOT TRUE))
    RETURNING a.*
), pushed AS (
    INSERT INTO lockapi.job (id, run_at, due_at, group_key, created_at, max_attempts, priority, worker, error, namespace, queue,
                             unique_key, name, payload, task, errors, headers)
    SELECT b.id,
           CASE WHEN b.group_key IS NULL THEN pg_catalog.statement_timestamp() ELSE timestamptz '20000-01-01 00:00:00+00' END,
           CASE WHEN b.group_key IS NOT NULL THEN pg_catalog.statement_timestamp() END, b.group_key, b.created_at, b.max_attempts, b.priority, b.worker, b.error,
           b.namespace, b.queue, b.unique_key, b.name, b.payload, b.task, b.errors, b.headers
      FROM back AS b
    RETURNING id
)
SELECT pg_catalog.count(*)
       + (SELECT pg_catalog.count(pg_catalog.pg_logical_emit_message(true, 'lockapi', '')) * 0
          FROM (SELECT) AS x WHERE NOT EXISTS (SELECT FROM held)) AS redriven,
       (SELECT pg_catalog.count(pg_catalog.pg_notify('lockapi', t.topic::text)) FROM unnest($6::int8[]) AS t (topic)) AS told,
       (SELECT pg_catalog.count(*) FROM held AS h) AS looked,
       ARRAY(SELECT o.id FROM one AS o WHERE o.first AND o.busy ORDER BY o.id) AS busy,
       (SELECT pg_catalog.max(h.id) FROM held AS h) AS last
  FROM pushed
