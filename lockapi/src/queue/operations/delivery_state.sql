-- Returns which deliveries are still the latest of their jobs, and which have completed them.
--
-- Promises: a job that has ended has no row, except one in the archive if it is kept there; in the archive,
-- only a completed job has the token. A job that waits, or that has another delivery, does not have the token
-- of the delivery; nor does one whose delivery was made in an earlier epoch, which nothing settles. Uncommitted changes of an open transaction are not visible: the row is as before.
-- Index: job_pkey and job_archive_pkey; no other fits. Race: none, it only reads, in one snapshot: a job that
-- is moved meanwhile is in one of the two tables.
SELECT j.id,
       CASE WHEN j.token >= (SELECT CASE WHEN e.number > e.first THEN e.number << 21 ELSE 0 END
                               FROM lockapi.epoch AS e WHERE e.one) THEN j.token END AS token,
       false AS ended
  FROM lockapi.job AS j
 WHERE j.id = ANY ($1::int8[])
 UNION ALL
SELECT a.id, CASE WHEN a.status = 'completed' THEN a.token END, true
  FROM lockapi.job_archive AS a
 WHERE a.id = ANY ($1::int8[])
