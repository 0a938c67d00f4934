-- Deletes jobs of the archive that were kept for long enough, and idempotency keys that are older than a day, at
-- most $2 of each.
--
-- Promises: an archived job without an expiry time is kept until it is deleted explicitly; runs of tasks are
-- kept as long as the log of their scheduler. Returns the larger of the two numbers of deleted rows.
-- Index: job_archive_expires, and push_key_created: the oldest first, so a scan stops at the first row that
-- is young enough. job_archive_pkey to delete; keys are never updated, so they are deleted by the ctid at
-- which they were locked.
-- Race: two concurrent sweeps skip each other's rows.
WITH old AS MATERIALIZED (
    SELECT a.id
      FROM lockapi.job_archive AS a
     WHERE a.namespace = $1::text AND a.expires_at < pg_catalog.statement_timestamp()
     ORDER BY a.expires_at
     LIMIT $2::int8
       FOR UPDATE OF a SKIP LOCKED
), gone AS (
    DELETE FROM lockapi.job_archive AS a
     WHERE a.id = ANY (ARRAY(SELECT o.id FROM old AS o))
    RETURNING 1
), stale AS MATERIALIZED (
    SELECT k.ctid
      FROM lockapi.push_key AS k
     WHERE k.created_at < pg_catalog.statement_timestamp() - interval '1 day'
     ORDER BY k.created_at
     LIMIT $2::int8
       FOR UPDATE OF k SKIP LOCKED
), forgotten AS (
    DELETE FROM lockapi.push_key AS k
     WHERE k.ctid = ANY (ARRAY(SELECT s.ctid FROM stale AS s))
    RETURNING 1
)
SELECT greatest((SELECT pg_catalog.count(*) FROM gone), (SELECT pg_catalog.count(*) FROM forgotten)) AS deleted
