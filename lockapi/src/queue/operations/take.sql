-- Claims and completes jobs in the transaction of the caller: at most $3 of those that are due, with the
-- priorities in the order of $6.
--
-- Promises: a commit completes the jobs; a rollback leaves them unchanged. Nobody else gets them as long as
-- the transaction is open. Expired jobs are skipped, which the sweep moves to the dead letters, and so are those whose
-- attempts are used up, which the next claim moves there. So are jobs with a name that is paused. Of a queue that has a limit none is
-- taken, because the row of the limit would stay locked as long as the transaction is open: then there is one row without a number.
-- Index: job_due, one range for each priority, job_pkey to complete, queue_pkey, paused_name_pkey and queue_limit_pkey; no other fits.
-- Race: as for a claim: locked rows are skipped, and the lease is checked on the locked row.
WITH start AS MATERIALIZED (
    SELECT ARRAY(SELECT p.name
                   FROM lockapi.paused_name AS p
                  WHERE p.namespace OPERATOR(pg_catalog.=) $1::pg_catalog.text
                    AND p.queue OPERATOR(pg_catalog.=) $2::pg_catalog.text
                    AND coalesce(p.paused_until OPERATOR(pg_catalog.>) pg_catalog.statement_timestamp(), true)) AS paused,
           EXISTS (SELECT
                     FROM lockapi.queue_limit AS l
                    WHERE l.namespace OPERATOR(pg_catalog.=) $1::pg_catalog.text
                      AND l.queue OPERATOR(pg_catalog.=) $2::pg_catalog.text
                      AND l.name OPERATOR(pg_catalog.=) '') AS limited
), picked AS MATERIALIZED (
    SELECT p.id
      FROM start AS s
     CROSS JOIN pg_catalog.unnest($6::pg_catalog.int8[]) AS level (priority)
     CROSS JOIN LATERAL (
           SELECT j.id
             FROM lockapi.job AS j
            WHERE j.namespace OPERATOR(pg_catalog.=) $1::pg_catalog.text
              AND j.queue OPERATOR(pg_catalog.=) $2::pg_catalog.text
              AND j.priority OPERATOR(pg_catalog.=) level.priority
              AND j.run_at OPERATOR(pg_catalog.<=) pg_catalog.statement_timestamp()
              AND j.name OPERATOR(pg_catalog.<>) ALL (s.paused)
              AND (j.expires_at IS NULL OR j.attempt OPERATOR(pg_catalog.>) 0 OR j.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp())
              AND j.attempt OPERATOR(pg_catalog.<) j.max_attempts
              AND (j.lease_until IS NULL OR j.lease_until OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp())
            ORDER BY j.run_at, j.id OPERATOR(pg_catalog.+) 0
            LIMIT $3::pg_catalog.int8
              FOR UPDATE OF j SKIP LOCKED) AS p
     WHERE NOT s.limited
       AND NOT EXISTS (SELECT
                         FROM lockapi.queue AS q
                        WHERE q.namespace OPERATOR(pg_catalog.=) $1::pg_catalog.text
                          AND q.name OPERATOR(pg_catalog.=) $2::pg_catalog.text AND q.paused
                          AND coalesce(q.paused_until OPERATOR(pg_catalog.>) pg_catalog.statement_timestamp(), true))
     LIMIT $3::pg_catalog.int8
), done AS (
    DELETE FROM lockapi.job AS j
     WHERE j.id OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT p.id FROM picked AS p))
    RETURNING j.*
), kept AS (
    INSERT INTO lockapi.job_archive (id, status, run_at, created_at, started_at, attempt, max_attempts,
                                     priority, worker, error, namespace, queue, unique_key, name, payload, task,
                                     errors, group_key, headers, expires_at)
    SELECT d.id, 'completed', d.run_at, d.created_at, pg_catalog.clock_timestamp(), d.attempt OPERATOR(pg_catalog.+) 1,
           d.max_attempts, d.priority, $4::pg_catalog.text, d.error, d.namespace, d.queue, d.unique_key, d.name,
           d.payload, d.task, d.errors, d.group_key, d.headers,
           CASE WHEN d.task IS NULL
                THEN pg_catalog.clock_timestamp()
                         OPERATOR(pg_catalog.+) ($5::pg_catalog.int8 OPERATOR(pg_catalog.*) interval '1 microsecond') END
      FROM done AS d
     WHERE $5::pg_catalog.int8 OPERATOR(pg_catalog.>=) 0 OR d.task IS NOT NULL
)
SELECT d.id, d.attempt::pg_catalog.int8, d.max_attempts::pg_catalog.int8, d.priority::pg_catalog.int8,
       (extract(epoch FROM d.run_at) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8 AS run_at,
       (extract(epoch FROM d.created_at) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8 AS created_at,
       d.name, d.payload::pg_catalog.text AS payload, d.headers::pg_catalog.text AS headers, d.group_key
  FROM start AS s
  LEFT JOIN done AS d ON true
 WHERE s.limited OR d.id IS NOT NULL
 ORDER BY pg_catalog.array_position($6::pg_catalog.int8[], d.priority::pg_catalog.int8), d.run_at, d.id
