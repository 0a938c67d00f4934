-- Reads what became of jobs, and the results of those that were completed with one.
--
-- Promises: a row for each of the jobs $1 of the namespaces $2 and queues $3 that something is known of: 0 it waits or runs, 1 it
-- was completed with this result, whose time is not over, 2 it was completed, 3 it is a dead letter, with its error, 4 it was
-- cancelled. Uncommitted changes of an open transaction are not visible.
-- Index: job_pkey, job_result_pkey and job_archive_pkey, one lookup each; the names are compared with the rows that were found.
-- Race: none, it only reads, in one snapshot: a job that ends meanwhile is in one of the tables.
SELECT w.n, s.state, s.result, s.error
  FROM unnest($1::int8[], $2::text[], $3::text[]) WITH ORDINALITY AS w (id, namespace, queue, n)
 CROSS JOIN LATERAL (
       SELECT o.state, o.result, o.error
         FROM (SELECT 0::int8 AS state, j.namespace, j.queue, NULL::text AS result, NULL::text AS error
                 FROM lockapi.job AS j
                WHERE j.id = w.id
                UNION ALL
               SELECT 1, r.namespace, r.queue, r.result::text, NULL
                 FROM lockapi.job_result AS r
                WHERE r.id = w.id AND r.expires_at > pg_catalog.clock_timestamp()
                UNION ALL
               SELECT CASE a.status WHEN 'completed' THEN 2 WHEN 'failed' THEN 3 ELSE 4 END, a.namespace, a.queue, NULL,
                      CASE WHEN a.status = 'failed' THEN a.error END
                 FROM lockapi.job_archive AS a
                WHERE a.id = w.id
               OFFSET 0) AS o
        WHERE o.namespace = w.namespace AND o.queue = w.queue
        ORDER BY o.state
        LIMIT 1) AS s
