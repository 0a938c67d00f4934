-- Deletes the log of runs that were fired more than $3 microseconds ago, at most $4, and their archived jobs:
-- of scheduler $2, and of the schedulers of the namespace that have no task any more, which no other node
-- sweeps.
--
-- Promises: runs that have not ended are kept.
-- Index: task_run_fired, from one scheduler to the next and in each the oldest first; task_pkey; job_pkey and
-- job_archive_pkey. No other fits.
-- Race: two concurrent sweeps skip each other's rows. A row that was updated while it was being locked is not
-- at the ctid that the snapshot shows, and is skipped until the next sweep.
WITH RECURSIVE known (scheduler) AS (
    (SELECT r.scheduler || ''
       FROM lockapi.task_run AS r
      WHERE r.namespace || '' = $1::text
      ORDER BY r.scheduler || '', r.fired_at LIMIT 1)
     UNION ALL
    SELECT (SELECT r.scheduler || ''
              FROM lockapi.task_run AS r
             WHERE r.namespace || '' = $1::text AND r.scheduler || '' > k.scheduler
             ORDER BY r.scheduler || '', r.fired_at
             LIMIT 1)
      FROM known AS k
     WHERE k.scheduler IS NOT NULL
), swept AS MATERIALIZED (
    SELECT $2::text AS scheduler
     UNION ALL
    SELECT k.scheduler
      FROM known AS k
     WHERE k.scheduler <> $2::text
       AND NOT EXISTS (SELECT FROM lockapi.task AS t
                        WHERE t.namespace = $1::text AND t.scheduler = k.scheduler OFFSET 0)
), old AS MATERIALIZED (
    SELECT o.ctid
      FROM swept AS s
     CROSS JOIN LATERAL (
           SELECT r.ctid
             FROM lockapi.task_run AS r
            WHERE r.namespace || '' = $1::text AND r.scheduler || '' = s.scheduler
              AND r.fired_at < pg_catalog.statement_timestamp() - $3::int8 * interval '1 microsecond'
              AND r.decided IS DISTINCT FROM 'held'
              AND NOT EXISTS (SELECT FROM lockapi.job AS j WHERE j.id = r.job OFFSET 0)
            ORDER BY r.fired_at LIMIT $4::int8
              FOR UPDATE OF r SKIP LOCKED) AS o
     LIMIT $4::int8
), gone AS (
    DELETE FROM lockapi.task_run AS r
     WHERE r.ctid = ANY (ARRAY(SELECT o.ctid FROM old AS o))
    RETURNING r.job
), forgotten AS (
    DELETE FROM lockapi.job_archive AS a
     WHERE a.id = ANY (ARRAY(SELECT g.job FROM gone AS g))
)
SELECT pg_catalog.count(*) AS deleted FROM gone
