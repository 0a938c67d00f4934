-- Reads the names of queues, of the namespace $1 or (NULL) of all, after the namespace $2 and the name $3.
--
-- Promises: at most $4 of those that have jobs or dead letters, or were paused or resumed, ordered by namespace and name.
-- Index: job_due, job_archive_failed and the primary key of queue, with one lookup for each next queue, however many
-- jobs there are. Race: none, it only reads; the answer may be old on arrival.
WITH RECURSIVE live AS (
    (SELECT j.namespace, j.queue
       FROM lockapi.job AS j
      WHERE (j.namespace, j.queue) > ($2::text, $3::text)
      ORDER BY j.namespace, j.queue
      LIMIT 1)
    UNION ALL
    SELECT n.namespace, n.queue
      FROM live AS l
     CROSS JOIN LATERAL (
           SELECT j.namespace, j.queue
             FROM lockapi.job AS j
            WHERE (j.namespace, j.queue) > (l.namespace, l.queue)
            ORDER BY j.namespace, j.queue
            LIMIT 1) AS n
     WHERE $1::text IS NULL OR l.namespace = $1::text
), dead AS (
    (SELECT a.namespace, a.queue
       FROM lockapi.job_archive AS a
      WHERE a.status = 'failed' AND (a.namespace, a.queue) > ($2::text, $3::text)
      ORDER BY a.namespace, a.queue
      LIMIT 1)
    UNION ALL
    SELECT n.namespace, n.queue
      FROM dead AS d
     CROSS JOIN LATERAL (
           SELECT a.namespace, a.queue
             FROM lockapi.job_archive AS a
            WHERE a.status = 'failed' AND (a.namespace, a.queue) > (d.namespace, d.queue)
            ORDER BY a.namespace, a.queue
            LIMIT 1) AS n
     WHERE $1::text IS NULL OR d.namespace = $1::text
), named AS (
    (SELECT l.namespace, l.queue FROM live AS l WHERE $1::text IS NULL OR l.namespace = $1::text LIMIT $4::int8)
     UNION
    (SELECT d.namespace, d.queue FROM dead AS d WHERE $1::text IS NULL OR d.namespace = $1::text LIMIT $4::int8)
     UNION
    (SELECT q.namespace, q.name
       FROM lockapi.queue AS q
      WHERE $1::text IS NULL AND (q.namespace, q.name) > ($2::text, $3::text)
      ORDER BY q.namespace, q.name
      LIMIT $4::int8)
     UNION
    (SELECT q.namespace, q.name
       FROM lockapi.queue AS q
      WHERE q.namespace = $1::text AND (q.namespace, q.name) > ($2::text, $3::text)
      ORDER BY q.namespace, q.name
      LIMIT $4::int8)
)
SELECT n.namespace, n.queue,
       EXISTS (SELECT FROM lockapi.queue AS q WHERE q.namespace = n.namespace AND q.name = n.queue AND q.paused
                  AND coalesce(q.paused_until > pg_catalog.statement_timestamp(), true)) AS paused
  FROM named AS n
 ORDER BY n.namespace COLLATE "C", n.queue COLLATE "C"
 LIMIT $4::int8
