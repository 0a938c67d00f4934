-- Rejects a caller that no longer holds the lease, inside its transaction.
--
-- Promises: a row for each slot that has the holder's token and has not ended. Until the transaction ends,
-- nobody else can acquire the lease, while its holder can still renew and release it.
-- Index: the primary key of lease.
-- Race: FOR KEY SHARE conflicts with the FOR UPDATE of an acquisition, but not with the holder's updates; the
-- predicate is evaluated on the locked row.
SELECT true AS held
  FROM lockapi.lease AS l
 WHERE l.namespace OPERATOR(pg_catalog.=) $1::pg_catalog.text AND l.key OPERATOR(pg_catalog.=) $2::pg_catalog.text
   AND l.slot OPERATOR(pg_catalog.=) ANY ($3::pg_catalog.int8[]) AND l.fence OPERATOR(pg_catalog.=) $4::pg_catalog.int8
   AND l.released_at IS NULL
   AND l.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
   FOR KEY SHARE OF l
