-- How many jobs of a queue nobody has completed, those that have failed for good among them.
-- Index: none; once in half a second, at the end. Race: none, it only reads.
SELECT (SELECT count(*) FROM lockapi.job AS j WHERE j.queue = $1)
     + (SELECT count(*) FROM lockapi.job_archive AS a WHERE a.queue = $1 AND a.status = 'failed') AS left
