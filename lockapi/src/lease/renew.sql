-- Renews leases.
--
-- Promises: a lease is extended only with its own token, and only while it has not ended. No row is inserted,
-- and no lease is taken over.
-- Index: the primary key of lease; no indexed column changes, so the update is HOT.
-- Race: an acquisition that locked the row first has ended the lease; the predicate sees this when it is
-- evaluated again on the new row version. Acquisitions never wait for rows. Renewals and releases, which use
-- different connections, lock rows in the order of their keys.
WITH want AS MATERIALIZED (
    SELECT w.*
      FROM unnest($1::text[], $2::text[], $3::int8[], $4::int8[], $5::int8[])
           WITH ORDINALITY AS w (namespace, key, slot, fence, ttl, n)
     ORDER BY w.namespace, w.key, w.slot
), renewed AS (
    UPDATE lockapi.lease AS l
       SET renewed_at = pg_catalog.clock_timestamp(),
           expires_at = pg_catalog.clock_timestamp() + w.ttl * interval '1 microsecond'
      FROM want AS w
     WHERE l.namespace = w.namespace AND l.key = w.key AND l.slot = w.slot AND l.fence = w.fence
       AND l.namespace = ($1::text[])[1] AND l.key = ANY (ARRAY(SELECT x.key FROM want AS x))
       AND l.released_at IS NULL
       AND l.expires_at > pg_catalog.clock_timestamp()
    RETURNING l.slot, l.fence
)
SELECT w.n, r.fence IS NOT NULL AS renewed
  FROM want AS w
  LEFT JOIN renewed AS r ON r.fence = w.fence AND r.slot = w.slot
