-- Reads which jobs run: of the namespace $1 or (NULL) of all, in the queue $2 or (NULL) any.
--
-- Promises: at most $3 of those whose lease has not ended, among the first $3 of each priority of one queue;
-- of many queues among the first 50 of each, or as many as $3 where at least half of these run.
-- Index: job_due, one range for each queue and priority, and one lookup to find each next queue.
-- Race: none, it only reads; the answer may be old on arrival.
SELECT j.id, j.namespace, j.queue, j.name, j.worker, j.attempt::int8 AS attempt,
       (extract(epoch FROM pg_catalog.clock_timestamp() - j.started_at) * 1000000)::int8 AS runs_for,
       (extract(epoch FROM j.lease_until - pg_catalog.clock_timestamp()) * 1000000)::int8 AS lease_left
  FROM lockapi.running_jobs($1::text, $2::text, $3::int8) AS j
 ORDER BY j.id
 LIMIT $3::int8
