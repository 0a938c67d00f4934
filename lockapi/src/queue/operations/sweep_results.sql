-- Deletes the results whose time is over, among the $2 rows that follow the number $1.
--
-- Promises: the others stay. Returns how many rows were deleted, how many were examined, and the number of the last examined row.
-- Index: job_result_pkey, for at most $2 rows.
-- Race: a row that is being written is skipped until the next sweep, and its time is checked again on the locked row.
WITH part AS MATERIALIZED (
    SELECT r.id, r.expires_at <= pg_catalog.clock_timestamp() AS expired
      FROM lockapi.job_result AS r
     WHERE r.id > $1::int8
     ORDER BY r.id
     LIMIT $2::int8
), over AS MATERIALIZED (
    SELECT o.place
      FROM part AS p
     CROSS JOIN LATERAL (
           SELECT g.ctid AS place
             FROM lockapi.job_result AS g
            WHERE g.id = p.id AND g.expires_at <= pg_catalog.clock_timestamp()
              FOR UPDATE OF g SKIP LOCKED) AS o
     WHERE p.expired
), gone AS (
    DELETE FROM lockapi.job_result AS r
     WHERE r.ctid = ANY (ARRAY(SELECT o.place FROM over AS o))
    RETURNING 1
)
SELECT (SELECT pg_catalog.count(*) FROM gone) AS deleted,
       (SELECT pg_catalog.count(*) FROM part) AS seen,
       (SELECT pg_catalog.max(p.id) FROM part AS p) AS last
