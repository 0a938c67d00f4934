-- Rejects a caller that no longer holds the mutex, inside its transaction.
--
-- Promises: true only when the session that holds the lock is alive (its mark cannot be shared) and no later
-- holder has checked in. The row stays locked until the transaction ends, so the check-in of a later holder
-- waits for it.
-- Index: the primary key of fence_mark.
-- Race: a stale holder that comes after its successor finds the larger token in the locked row.
WITH alive AS MATERIALIZED (
    SELECT NOT pg_catalog.pg_try_advisory_xact_lock_shared($1::pg_catalog.int8) AS held
), seen AS (
    INSERT INTO lockapi.fence_mark AS m (namespace, key, fence)
    SELECT $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.int8 FROM alive WHERE held
    ON CONFLICT (namespace, key) DO UPDATE SET fence = excluded.fence, checked_at = pg_catalog.clock_timestamp()
     WHERE m.fence OPERATOR(pg_catalog.<=) excluded.fence
    RETURNING m.fence
)
SELECT EXISTS (SELECT FROM seen) AS held
