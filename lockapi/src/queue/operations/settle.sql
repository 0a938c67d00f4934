-- Settles deliveries: fails, rejects, snoozes, releases, abandons, extends, completes, defers or interrupts them. Of several for
-- one job in the batch, the first takes effect.
--
-- Promises: only the latest delivery of a job is settled, whether or not its lease has ended, and only in the
-- epoch in which it was made: what came after it may have been lost with an earlier server. A job that failed
-- at its last attempt, or was rejected, goes to the dead letters. Returns 0 done, 1 dead letter, 2 lost, 3 not
-- done because the row is locked. Jobs that are settled together with the same delay are due at the same time,
-- so they keep the order of their numbers. A job of a group that waits for its next attempt is parked: another
-- has its place meanwhile. One that is snoozed or interrupted was begun in time, and does not expire any more; one that is
-- deferred or released was not begun. Where a queue limits how many of its jobs run, a lease that has ended is not extended: another may have its place.
-- Index: job_pkey, no other fits; queue_limit_pkey. An extension changes no indexed column, so it is HOT.
-- Race: a claim that took over the job first has changed its token, and the token is checked again on the
-- locked row. A row that a transaction has locked (by an ack of its own) is skipped: this statement never
-- waits for a row. Whether a lease has ended is asked once its row is locked: a claim that counts its place as free has locked it, too.
WITH want AS MATERIALIZED (
    SELECT DISTINCT ON (w.id) w.id, w.kind, w.time, w.error, w.keep, w.n,
           CASE WHEN w.token >= (SELECT CASE WHEN e.number > e.first THEN e.number << 21 ELSE 0 END
                                   FROM lockapi.epoch AS e WHERE e.one) THEN w.token END AS token
      FROM unnest($1::int8[], $2::int8[], $3::int8[], $4::int8[], $5::text[], $6::int8[])
           WITH ORDINALITY AS w (id, token, kind, time, error, keep, n)
     ORDER BY w.id, w.n
), held AS MATERIALIZED (
    SELECT w.n, o.id, w.kind = 6 AS completed, w.kind IN (1, 6) OR (w.kind IN (0, 4) AND o.tried) AS last,
           CASE WHEN w.kind = 5 AND o.lease_until <= pg_catalog.clock_timestamp()
                THEN EXISTS (SELECT FROM lockapi.queue_limit AS l
                              WHERE l.namespace = o.namespace AND l.queue = o.queue AND l.name = '' AND l.most IS NOT NULL)
                ELSE false END AS late
      FROM want AS w
     CROSS JOIN LATERAL (
           SELECT j.id, j.attempt >= j.max_attempts AS tried, j.lease_until, j.namespace, j.queue
             FROM lockapi.job AS j
            WHERE j.id = w.id AND j.token = w.token
            LIMIT 1
              FOR UPDATE OF j SKIP LOCKED) AS o
), moved AS (
    UPDATE lockapi.job AS j
       SET token = CASE WHEN w.kind = 5 THEN j.token END,
           lease_until = CASE WHEN w.kind = 5 THEN pg_catalog.clock_timestamp() + w.time * interval '1 microsecond' END,
           due_at = CASE WHEN w.kind IN (0, 2, 7) AND j.group_key IS NOT NULL
                         THEN pg_catalog.statement_timestamp() + w.time * interval '1 microsecond' ELSE j.due_at END,
           run_at = CASE WHEN w.kind IN (0, 2, 7) AND j.group_key IS NOT NULL THEN timestamptz '20000-01-01 00:00:00+00'
                         WHEN w.kind IN (0, 2, 7) THEN pg_catalog.statement_timestamp() + w.time * interval '1 microsecond'
                         ELSE j.run_at END,
           attempt = CASE WHEN w.kind IN (2, 3, 7, 8) THEN j.attempt - 1 ELSE j.attempt END,
           expires_at = CASE WHEN w.kind NOT IN (2, 8) THEN j.expires_at END,
           error = coalesce(nullif(w.error, ''), j.error),
           errors = CASE WHEN w.error = '' THEN j.errors
                         ELSE coalesce(CASE WHEN pg_catalog.jsonb_array_length(j.errors) >= 10 THEN j.errors - 0 ELSE j.errors END, '[]')
                             || pg_catalog.jsonb_build_object(
                                    'attempt', j.attempt, 'at', (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::int8,
                                    'worker', j.worker, 'error', pg_catalog."left"(w.error, 1000)) END
      FROM held AS h
      JOIN want AS w ON w.n = h.n
     WHERE NOT h.last AND NOT h.late AND j.id = h.id AND j.id = ANY (ARRAY(SELECT x.id FROM held AS x))
    RETURNING h.n
), gone AS (
    DELETE FROM lockapi.job AS j
     USING held AS h
     WHERE h.last AND j.id = h.id AND j.id = ANY (ARRAY(SELECT x.id FROM held AS x))
    RETURNING j.*, h.n, h.completed
), dead AS (
    INSERT INTO lockapi.job_archive (id, token, status, run_at, created_at, started_at, attempt, max_attempts,
                                     priority, worker, error, namespace, queue, unique_key, name, payload, task,
                                     errors, group_key, headers, expires_at)
    SELECT g.id, g.token, CASE WHEN g.completed THEN 'completed' ELSE 'failed' END, g.run_at, g.created_at,
           g.started_at, g.attempt, g.max_attempts, g.priority, g.worker, coalesce(nullif(w.error, ''), g.error),
           g.namespace, g.queue, g.unique_key, g.name, g.payload, g.task,
           CASE WHEN w.error = '' THEN g.errors
                ELSE coalesce(CASE WHEN pg_catalog.jsonb_array_length(g.errors) >= 10 THEN g.errors - 0 ELSE g.errors END, '[]')
               || pg_catalog.jsonb_build_object(
                      'attempt', g.attempt, 'at', (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::int8,
                      'worker', g.worker, 'error', pg_catalog."left"(w.error, 1000)) END,
           g.group_key, g.headers,
           CASE WHEN g.task IS NULL AND w.keep >= 0
                THEN pg_catalog.clock_timestamp() + w.keep * interval '1 microsecond' END
      FROM gone AS g
      JOIN want AS w ON w.n = g.n
     WHERE NOT g.completed OR w.keep >= 0 OR g.task IS NOT NULL
)
SELECT w.n,
       CASE WHEN m.n IS NOT NULL OR g.completed THEN 0 WHEN g.n IS NOT NULL THEN 1 WHEN j.id IS NULL OR h.late THEN 2 ELSE 3 END::int8 AS settled
  FROM want AS w
  LEFT JOIN moved AS m ON m.n = w.n
  LEFT JOIN gone AS g ON g.n = w.n
  LEFT JOIN held AS h ON h.n = w.n
  LEFT JOIN lockapi.job AS j ON j.id = w.id AND j.token = w.token AND j.id = ANY ($1::int8[])
