-- Deletes what is too old of the history, among the $6 rows that follow that of the namespace $1, the queue $2, the minutes or hours
-- ($3), the time $4 and the name $5.
--
-- Promises: a minute stays until an hour after its end, and an hour until a week after its end. Returns how many rows were
-- deleted, how many were examined, and the key of the last examined one.
-- Index: job_history_pkey, for at most $6 rows.
-- Race: a row that another sweep adds to is skipped until the next sweep. What is added for a minute that is gone makes it anew,
-- and it is deleted again.
WITH part AS MATERIALIZED (
    SELECT h.namespace, h.queue, h.hourly, h.at, h.name,
           h.at < pg_catalog.clock_timestamp() - CASE WHEN h.hourly THEN interval '169 hours' ELSE interval '61 minutes' END AS old
      FROM lockapi.job_history AS h
     WHERE (h.namespace, h.queue, h.hourly, h.at, h.name)
           > ($1::text, $2::text, $3::bool, timestamptz 'epoch' + $4::int8 * interval '1 microsecond', $5::text)
     ORDER BY h.namespace, h.queue, h.hourly, h.at, h.name
     LIMIT $6::int8
), over AS MATERIALIZED (
    SELECT o.place
      FROM part AS p
     CROSS JOIN LATERAL (
           SELECT g.ctid AS place
             FROM lockapi.job_history AS g
            WHERE g.namespace = p.namespace AND g.queue = p.queue AND g.hourly = p.hourly AND g.at = p.at AND g.name = p.name
              FOR UPDATE OF g SKIP LOCKED) AS o
     WHERE p.old
), gone AS (
    DELETE FROM lockapi.job_history AS h
     WHERE h.ctid = ANY (ARRAY(SELECT o.place FROM over AS o))
    RETURNING 1
)
SELECT (SELECT pg_catalog.count(*) FROM gone) AS deleted,
       (SELECT pg_catalog.count(*) FROM part) AS seen,
       l.namespace, l.queue, l.hourly, (extract(epoch FROM l.at) * 1000000)::int8 AS at, l.name
  FROM (SELECT true) AS one
  LEFT JOIN (SELECT p.namespace, p.queue, p.hourly, p.at, p.name
               FROM part AS p
              ORDER BY p.namespace DESC, p.queue DESC, p.hourly DESC, p.at DESC, p.name DESC
              LIMIT 1) AS l ON true
