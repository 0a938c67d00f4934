-- Tells which deliveries are still the latest of their jobs, and which have completed them.
--
-- Promises: a job that has ended has no row, but one in the archive where that is kept; there only one that
-- was completed has the token. One that waits, or that another has, has not the token of the delivery. What
-- an open transaction has done to a row is not seen: it stands as before.
-- Index: job_pkey and job_archive_pkey; no other fits. Race: none, it only reads, and of one snapshot: a job
-- that is moved meanwhile is in one of both tables.
SELECT j.id, j.token, false AS ended
  FROM lockapi.job AS j
 WHERE j.id = ANY ($1::int8[])
 UNION ALL
SELECT a.id, CASE WHEN a.status = 'completed' THEN a.token END, true
  FROM lockapi.job_archive AS a
 WHERE a.id = ANY ($1::int8[])
