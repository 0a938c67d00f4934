-- Moves expired jobs that were never delivered to the dead letters, in all queues of a namespace: those among the
-- $4 expired jobs that follow the time $2 and the number $3, and no more than have $5 bytes of payload, but for
-- the last of them.
--
-- Promises: a job is moved as a claim would move it, and its unique key is free again. A job that has been
-- delivered, or whose lease is running, stays. Paused queues are included. A dead letter is kept for the time
-- that $7 names for its queue in $6, and in other queues for $8. Returns how many jobs were moved, how many were
-- examined ($4 if there was no room for more bytes), and the place of the last.
-- Index: job_expires to find, for at most $4 rows; the collation keeps job_due from fitting. job_pkey to lock and
-- to delete; the coalesce keeps job_expires from fitting there. The next part starts after the place of this one,
-- so entries of deleted jobs that cannot be vacuumed yet are read once in a sweep.
-- Race: two sweeps, or a sweep and a claim, conflict at FOR UPDATE, where the second skips the row. A job that was
-- claimed or replaced after the snapshot is checked again when it is locked. A locked job is left to the next sweep.
WITH part AS MATERIALIZED (
    SELECT j.id, j.expires_at, j.attempt = 0 AS unbegun, CASE WHEN j.attempt = 0 THEN j.size ELSE 0 END AS size
      FROM lockapi.job AS j
     WHERE j.namespace COLLATE "POSIX" = $1::text AND j.expires_at <= pg_catalog.statement_timestamp()
       AND (j.expires_at, j.id + 0) > (timestamptz 'epoch' + $2::int8 * interval '1 microsecond', $3::int8)
     ORDER BY j.expires_at, j.id + 0
     LIMIT $4::int8
), looked AS MATERIALIZED (
    SELECT s.id, s.expires_at, s.unbegun
      FROM (SELECT p.*, pg_catalog.sum(p.size) OVER (ORDER BY p.expires_at, p.id ROWS UNBOUNDED PRECEDING) - p.size AS before
              FROM part AS p) AS s
     WHERE s.before < $5::int8
), held AS MATERIALIZED (
    SELECT j.id
      FROM lockapi.job AS j
     WHERE j.id = ANY (ARRAY(SELECT l.id FROM looked AS l WHERE l.unbegun))
       AND j.attempt = 0 AND coalesce(j.expires_at <= pg_catalog.clock_timestamp(), false)
       AND (j.lease_until IS NULL OR j.lease_until <= pg_catalog.clock_timestamp())
       FOR UPDATE OF j SKIP LOCKED
), buried AS (
    DELETE FROM lockapi.job AS j
     WHERE j.id = ANY (ARRAY(SELECT h.id FROM held AS h))
    RETURNING j.*
), dead AS (
    INSERT INTO lockapi.job_archive (id, token, status, run_at, created_at, started_at, attempt, max_attempts,
                                     priority, worker, error, namespace, queue, unique_key, name, payload, task,
                                     errors, group_key, headers, expires_at)
    SELECT b.id, b.token, 'failed', coalesce(b.due_at, b.run_at), b.created_at, b.started_at, b.attempt, b.max_attempts,
           b.priority, b.worker, 'it was not delivered in time', b.namespace, b.queue, b.unique_key, b.name,
           b.payload, b.task,
           coalesce(CASE WHEN pg_catalog.jsonb_array_length(b.errors) >= 10 THEN b.errors - 0 ELSE b.errors END, '[]')
               || pg_catalog.jsonb_build_object(
                      'attempt', b.attempt, 'at', (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::int8,
                      'worker', b.worker, 'error', 'it was not delivered in time'),
           b.group_key, b.headers,
           CASE WHEN b.task IS NULL AND coalesce(k.keep, $8::int8) >= 0
                THEN pg_catalog.clock_timestamp() + coalesce(k.keep, $8::int8) * interval '1 microsecond' END
      FROM buried AS b
      LEFT JOIN unnest($6::text[], $7::int8[]) AS k (queue, keep) ON k.queue = b.queue
)
SELECT (SELECT pg_catalog.count(*) FROM buried) AS moved,
       CASE WHEN (SELECT pg_catalog.count(*) FROM looked) < (SELECT pg_catalog.count(*) FROM part)
            THEN $4::int8 ELSE (SELECT pg_catalog.count(*) FROM part) END AS seen,
       (extract(epoch FROM l.expires_at) * 1000000)::int8 AS expires_at, l.id
  FROM (SELECT) AS one
  LEFT JOIN LATERAL (
       SELECT l.expires_at, l.id FROM looked AS l ORDER BY l.expires_at DESC, l.id DESC LIMIT 1) AS l ON true
