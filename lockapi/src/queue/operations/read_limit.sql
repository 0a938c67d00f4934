-- Reads the limit of a queue, and counts how many of its places are taken.
--
-- Promises: no row where the queue has none. A place is taken while its job has the token of the delivery and its lease runs, where
-- it is limited how many run.
-- Index: queue_limit_pkey, and job_pkey for each delivery that was noted. Race: none, it only reads.
SELECT l.most, l.permits, l.period, l.burst, l.step,
       (SELECT pg_catalog.count(*)
          FROM unnest(l.ids, l.tokens) AS u (id, token)
         CROSS JOIN LATERAL (
               SELECT
                 FROM lockapi.job AS j
                WHERE l.most IS NOT NULL AND j.id = u.id AND j.token = u.token AND j.lease_until > pg_catalog.clock_timestamp()
                LIMIT 1) AS p) AS running
  FROM lockapi.queue_limit AS l
 WHERE l.namespace = $1::text AND l.queue = $2::text AND l.name = ''
