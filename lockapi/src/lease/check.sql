-- Rejects a lease holder that no longer holds, inside the caller's transaction.
--
-- Promises: a row for each slot that has the holder's token and has not ended; until the transaction
-- ends the lease is given to nobody else, while its holder can still renew and release it.
-- Index: the primary key of lease.
-- Race: FOR KEY SHARE conflicts with the FOR UPDATE of a taker and not with the holder's updates;
-- the predicate is evaluated on the locked row.
SELECT true AS held
  FROM lockapi.lease AS l
 WHERE l.namespace = $1::text AND l.key = $2::text AND l.slot = ANY ($3::int8[]) AND l.fence = $4::int8
   AND l.released_at IS NULL
   AND l.expires_at > pg_catalog.clock_timestamp()
   FOR KEY SHARE OF l
