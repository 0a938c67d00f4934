-- Locks the job of a unique key until the end of the transaction, if it waits: a push of the key that found
-- it locked finds it free afterwards.
--
-- Promises: returns how many jobs are locked, 0 or 1. A job that was delivered, or has ended, is not locked
-- any more.
-- Index: job_unique, whose collation no other index has.
-- Race: it waits for the transaction that has locked the job, as long as the settings of the session allow,
-- and then looks at the row as that has left it. Two that wait for each other are a deadlock that the server
-- ends.
WITH held AS MATERIALIZED (
    SELECT j.id
      FROM lockapi.job AS j
     WHERE j.namespace COLLATE pg_catalog."POSIX" OPERATOR(pg_catalog.=) $1::pg_catalog.text
       AND j.queue COLLATE pg_catalog."POSIX" OPERATOR(pg_catalog.=) $2::pg_catalog.text
       AND j.unique_key OPERATOR(pg_catalog.=) $3::pg_catalog.text
       AND j.token IS NULL
       FOR UPDATE OF j
)
SELECT pg_catalog.count(h.id) AS held
  FROM held AS h
