-- Deletes the log of runs that were fired more than $3 microseconds ago, at most $4, and their archived jobs:
-- of scheduler $2, and of the schedulers of the namespace that have no task any more, which no other node
-- sweeps; from those on that scheduler $5 fired at $6.
--
-- Promises: runs that have not ended are kept. Returns how many were deleted, how many were examined, and the place of the last
-- one.
-- Index: task_run_fired, from one scheduler to the next and in each the oldest first; task_pkey; job_pkey and
-- job_archive_pkey. No other fits. The next part starts at the place of this one, so entries of deleted rows that cannot be
-- vacuumed yet, and runs that have not ended, are read once.
-- Race: two concurrent sweeps skip each other's rows. A row that was updated while it was being locked is not
-- at the ctid that the snapshot shows, and is skipped until the next sweep. Whoever puts the job of a run back has its archived
-- row locked: then the run stays.
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
    SELECT o.ctid, o.job, o.fired_at, s.scheduler
      FROM (SELECT s.scheduler FROM swept AS s WHERE s.scheduler >= $5::text ORDER BY s.scheduler) AS s
     CROSS JOIN LATERAL (
           SELECT r.ctid, r.job, r.fired_at
             FROM lockapi.task_run AS r
            WHERE r.namespace || '' = $1::text AND r.scheduler || '' = s.scheduler
              AND r.fired_at < pg_catalog.statement_timestamp() - $3::int8 * interval '1 microsecond'
              AND r.fired_at >= CASE WHEN s.scheduler = $5::text THEN timestamptz 'epoch' + $6::int8 * interval '1 microsecond'
                                     ELSE timestamptz '-infinity' END
              AND r.decided IS DISTINCT FROM 'held'
              AND NOT EXISTS (SELECT FROM lockapi.job AS j WHERE j.id = r.job OFFSET 0)
            ORDER BY r.fired_at LIMIT $4::int8
              FOR UPDATE OF r SKIP LOCKED) AS o
     LIMIT $4::int8
), held AS MATERIALIZED (
    SELECT o.ctid, a.id
      FROM old AS o
     CROSS JOIN LATERAL (
           SELECT a.id
             FROM lockapi.job_archive AS a
            WHERE a.id = o.job
              FOR UPDATE OF a SKIP LOCKED) AS a
), ended AS MATERIALIZED (
    SELECT h.ctid FROM held AS h
     UNION ALL
    SELECT o.ctid
      FROM old AS o
     WHERE NOT EXISTS (SELECT FROM lockapi.job_archive AS a WHERE a.id = o.job OFFSET 0)
), gone AS (
    DELETE FROM lockapi.task_run AS r
     WHERE r.ctid = ANY (ARRAY(SELECT e.ctid FROM ended AS e))
    RETURNING 1
), forgotten AS (
    DELETE FROM lockapi.job_archive AS a
     WHERE a.id = ANY (ARRAY(SELECT h.id FROM held AS h))
)
SELECT (SELECT pg_catalog.count(*) FROM gone) AS deleted,
       (SELECT pg_catalog.count(*) FROM old) AS seen,
       l.scheduler, (extract(epoch FROM l.fired_at) * 1000000)::int8 AS fired
  FROM (SELECT) AS one
  LEFT JOIN LATERAL (
       SELECT o.scheduler::text, o.fired_at FROM old AS o
        ORDER BY o.scheduler DESC, o.fired_at DESC LIMIT 1) AS l ON true
