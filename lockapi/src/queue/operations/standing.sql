-- Tells which deliveries are still the latest of their jobs.
--
-- Promises: a job that has ended has no row; one that waits, or that another has, has not the token of the
-- delivery. What an open transaction has done to a row is not seen: it stands as before.
-- Index: job_pkey; no other fits. Race: none, it only reads.
SELECT j.id, j.token FROM lockapi.job AS j WHERE j.id = ANY ($1::int8[])
