-- Reads the job $2 of the namespace $1, whether it waits, runs or has ended.
--
-- Promises: at most one row. The payload, the headers and the result are read only if $3 is true, and of the payload and the
-- result the first $4 characters.
-- What a delivery before the latest told is not
-- shown, and nothing of a job that begins anew.
-- Index: job_pkey, job_archive_pkey, job_progress_pkey and job_result_pkey; the collation keeps the others from fitting.
-- Race: none, it only reads; both tables are read as of one moment, so a job that ends meanwhile is in one of
-- them.
SELECT j.id, j.queue, CASE WHEN j.lease_until > pg_catalog.clock_timestamp() THEN 'running'
                           WHEN j.run_at > pg_catalog.statement_timestamp() THEN 'delayed' ELSE 'ready' END AS state,
       j.name, j.priority::int8 AS priority, j.attempt::int8 AS attempt, j.max_attempts::int8 AS max_attempts,
       (extract(epoch FROM coalesce(j.due_at, j.run_at)) * 1000000)::int8 AS run_at,
       (extract(epoch FROM j.created_at) * 1000000)::int8 AS created_at,
       (extract(epoch FROM j.started_at) * 1000000)::int8 AS started_at,
       NULL::int8 AS ended_at,
       (extract(epoch FROM j.lease_until - pg_catalog.clock_timestamp()) * 1000000)::int8 AS lease_left,
       (extract(epoch FROM j.expires_at) * 1000000)::int8 AS expires_at,
       j.worker, j.error, j.unique_key, j.task, j.errors::text AS errors, j.size::int8 AS size,
       CASE WHEN $3::bool THEN pg_catalog.left(j.payload::text, $4::int8::int4) END AS payload,
       CASE WHEN $3::bool THEN j.headers::text END AS headers, p.millionths, p.note, p.reported_at, NULL::text AS result,
       j.group_key, j.headers ->> 'tags' AS tags
  FROM lockapi.job AS j
  LEFT JOIN LATERAL (
       SELECT (p.fraction * 1000000)::int8 AS millionths, p.note, (extract(epoch FROM p.reported_at) * 1000000)::int8 AS reported_at
         FROM lockapi.job_progress AS p
        WHERE p.id = j.id AND p.token = coalesce(j.token, p.token) AND j.attempt > 0
       OFFSET 0) AS p ON true
 WHERE j.id = $2::int8 AND j.namespace COLLATE "POSIX" = $1::text
 UNION ALL
SELECT a.id, a.queue, a.status, a.name, a.priority::int8, a.attempt::int8, a.max_attempts::int8,
       (extract(epoch FROM a.run_at) * 1000000)::int8, (extract(epoch FROM a.created_at) * 1000000)::int8,
       (extract(epoch FROM a.started_at) * 1000000)::int8, (extract(epoch FROM a.completed_at) * 1000000)::int8,
       NULL, NULL, a.worker, a.error, a.unique_key, a.task, a.errors::text,
       pg_catalog.octet_length(a.payload::text)::int8,
       CASE WHEN $3::bool THEN pg_catalog.left(a.payload::text, $4::int8::int4) END,
       CASE WHEN $3::bool THEN a.headers::text END, p.millionths, p.note, p.reported_at,
       CASE WHEN $3::bool THEN pg_catalog.left(r.result::text, $4::int8::int4) END,
       a.group_key, a.headers ->> 'tags'
  FROM lockapi.job_archive AS a
  LEFT JOIN LATERAL (
       SELECT (p.fraction * 1000000)::int8 AS millionths, p.note, (extract(epoch FROM p.reported_at) * 1000000)::int8 AS reported_at
         FROM lockapi.job_progress AS p
        WHERE p.id = a.id AND p.token = coalesce(a.token, p.token) AND a.attempt > 0
       OFFSET 0) AS p ON true
  LEFT JOIN LATERAL (
       SELECT r.result FROM lockapi.job_result AS r WHERE r.id = a.id AND r.expires_at > pg_catalog.clock_timestamp()
       OFFSET 0) AS r ON true
 WHERE a.id = $2::int8 AND a.namespace COLLATE "POSIX" = $1::text
