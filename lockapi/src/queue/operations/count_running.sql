-- Counts the jobs of a queue that run, among the next $6 of each priority in $3 after the place in $4 and $5.
--
-- Promises: a row for each priority; reads at most $6 index entries for each. A job runs while its lease has not
-- ended, and while an open transaction has taken, completed or locked it. Returns also when the queue was last paused
-- or resumed, and which transactions may change jobs: one whose claim began before a pause was committed is among
-- them until it ends.
-- Index: job_due, one range for each priority; job_pkey; queue_pkey.
-- Race: the transactions are read after the snapshot was taken: what one of them has committed meanwhile is counted by
-- the next statement. Only who can lock a row knows that nobody else has; a number in xmax may be that of a
-- savepoint, or of several transactions, so rows that have one are locked, and those that cannot be run. All that take,
-- complete or change a job conflict with a shared lock, and others that count do not.
WITH locks AS MATERIALIZED (
    SELECT DISTINCT pg_catalog.hashtextextended(l.virtualtransaction, 0) AS transaction
      FROM pg_catalog.pg_locks AS l
     WHERE l.granted AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
       AND l.locktype = 'relation' AND l.relation = 'lockapi.job'::regclass AND l.mode = 'RowExclusiveLock'
       AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d
                          WHERE d.datname = pg_catalog.current_database())
), own AS MATERIALIZED (
    SELECT q.paused AND coalesce(q.paused_until > pg_catalog.statement_timestamp(), true) AS paused,
           (extract(epoch FROM q.changed_at) * 1000000)::int8 AS changed_at
      FROM lockapi.queue AS q
     WHERE q.namespace = $1::text AND q.name = $2::text
)
SELECT level.priority, p.examined, p.running, (extract(epoch FROM p.run_at) * 1000000)::int8 AS run_at, p.id,
       coalesce((SELECT o.paused FROM own AS o), false) AS paused,
       coalesce((SELECT o.changed_at FROM own AS o), 0) AS changed_at,
       ARRAY(SELECT l.transaction FROM locks AS l) AS transactions
  FROM unnest($3::int8[], $4::int8[], $5::int8[]) AS level (priority, from_at, from_id)
 CROSS JOIN LATERAL (
       SELECT pg_catalog.count(*) AS examined, pg_catalog.max(o.run_at) AS run_at,
              (pg_catalog.array_agg(o.id ORDER BY o.run_at DESC, o.id DESC))[1] AS id,
              pg_catalog.count(*) FILTER (WHERE o.held OR (o.marked AND f.held IS NOT FALSE)) AS running
         FROM (SELECT j.run_at, j.id, coalesce(j.lease_until > pg_catalog.clock_timestamp(), false) AS held,
                      j.xmax <> '0'::xid AS marked
                 FROM lockapi.job AS j
                WHERE j.namespace = $1::text AND j.queue = $2::text AND j.priority = level.priority
                  AND j.run_at <= pg_catalog.statement_timestamp()
                  AND (j.run_at, j.id + 0) > (timestamptz 'epoch' + level.from_at * interval '1 microsecond', level.from_id)
                ORDER BY j.run_at, j.id + 0
                LIMIT $6::int8) AS o
         LEFT JOIN LATERAL (
              SELECT coalesce(j.lease_until > pg_catalog.clock_timestamp(), false) AS held
                FROM lockapi.job AS j
               WHERE o.marked AND NOT o.held AND j.id = o.id
               LIMIT 1
                 FOR SHARE OF j SKIP LOCKED) AS f ON true) AS p
