-- Deletes jobs of the archive that were kept for long enough, from those that expired at $2 on, and idempotency keys that are
-- older than a day, from those of $3 on, at most $4 of each.
--
-- Promises: an archived job without an expiry time is kept until it is deleted explicitly; runs of tasks are
-- kept as long as the log of their scheduler. Returns how many rows were deleted, the larger of the two numbers of
-- examined rows, and the times from which to go on.
-- Index: job_archive_expires, and push_key_created: the oldest first, so a scan stops at the first row that is young
-- enough. The next part starts at the times of this one, so entries of deleted rows that cannot be vacuumed yet are read
-- once, but for those of the last microsecond. job_archive_pkey to delete; keys are never updated, so they are deleted
-- by the ctid at which they were locked.
-- Race: two concurrent sweeps skip each other's rows.
WITH old AS MATERIALIZED (
    SELECT a.id, a.expires_at
      FROM lockapi.job_archive AS a
     WHERE a.namespace = $1::text AND a.expires_at < pg_catalog.statement_timestamp()
       AND a.expires_at >= timestamptz 'epoch' + $2::int8 * interval '1 microsecond'
     ORDER BY a.expires_at
     LIMIT $4::int8
       FOR UPDATE OF a SKIP LOCKED
), gone AS (
    DELETE FROM lockapi.job_archive AS a
     WHERE a.id = ANY (ARRAY(SELECT o.id FROM old AS o))
    RETURNING 1
), stale AS MATERIALIZED (
    SELECT k.ctid, k.created_at
      FROM lockapi.push_key AS k
     WHERE k.created_at < pg_catalog.statement_timestamp() - interval '24 hours'
       AND k.created_at >= timestamptz 'epoch' + $3::int8 * interval '1 microsecond'
     ORDER BY k.created_at
     LIMIT $4::int8
       FOR UPDATE OF k SKIP LOCKED
), forgotten AS (
    DELETE FROM lockapi.push_key AS k
     WHERE k.ctid = ANY (ARRAY(SELECT s.ctid FROM stale AS s))
    RETURNING 1
)
SELECT (SELECT pg_catalog.count(*) FROM gone) + (SELECT pg_catalog.count(*) FROM forgotten) AS deleted,
       greatest((SELECT pg_catalog.count(*) FROM old), (SELECT pg_catalog.count(*) FROM stale)) AS seen,
       coalesce((SELECT (extract(epoch FROM pg_catalog.max(o.expires_at)) * 1000000)::int8 FROM old AS o), $2::int8) AS expired,
       coalesce((SELECT (extract(epoch FROM pg_catalog.max(s.created_at)) * 1000000)::int8 FROM stale AS s), $3::int8) AS created
