-- Deletes the reports of jobs that are gone, among the $2 rows that follow the number $1.
--
-- Promises: the report of a job that waits, runs or is in the archive stays. Returns how many rows were deleted, how many
-- were examined, and the number of the last examined row.
-- Index: job_progress_pkey, for at most $2 rows; job_pkey and job_archive_pkey, one lookup each.
-- Race: a number is never used again, so what is gone stays gone, and a job that is moved meanwhile is in one of the two
-- tables. A row that is being written is skipped until the next sweep; a report that is stored when its job has just gone
-- is found by that.
WITH part AS MATERIALIZED (
    SELECT p.id
      FROM lockapi.job_progress AS p
     WHERE p.id > $1::int8
     ORDER BY p.id
     LIMIT $2::int8
), over AS MATERIALIZED (
    SELECT o.place
      FROM part AS p
     CROSS JOIN LATERAL (
           SELECT g.ctid AS place
             FROM lockapi.job_progress AS g
            WHERE g.id = p.id
              -- No joins: these would read the whole tables.
              AND (SELECT true FROM lockapi.job AS j WHERE j.id = g.id LIMIT 1) IS NULL
              AND (SELECT true FROM lockapi.job_archive AS a WHERE a.id = g.id LIMIT 1) IS NULL
              FOR UPDATE OF g SKIP LOCKED) AS o
), gone AS (
    DELETE FROM lockapi.job_progress AS p
     WHERE p.ctid = ANY (ARRAY(SELECT o.place FROM over AS o))
    RETURNING 1
)
SELECT (SELECT pg_catalog.count(*) FROM gone) AS deleted,
       (SELECT pg_catalog.count(*) FROM part) AS seen,
       (SELECT pg_catalog.max(p.id) FROM part AS p) AS last
