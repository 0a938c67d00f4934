-- Takes the lease $2 of the namespace $1, in all its slots, from whoever holds them, for the reason $3.
--
-- Promises: it is free at once, also when it has a minimum hold; the former holder's token is in no row
-- any more, so its next renewal, its release and its check-in are told that it is lost. Answers a
-- row for each owner. What is done is in the audit log, in the same transaction.
-- Index: the primary key of lease.
-- Race: a renewal meets it at the row, where the one that is second finds what the first left. A
-- transaction that has checked in keeps the next holder out until it ends, as ever.
WITH taken AS (
    UPDATE lockapi.lease AS l
       SET fence = pg_catalog.nextval('lockapi.fence_seq') << 10,
           released_at = pg_catalog.clock_timestamp(),
           held_until = NULL,
           expires_at = pg_catalog.clock_timestamp()
     WHERE l.namespace = $1::text AND l.key = $2::text
       AND l.released_at IS NULL AND l.expires_at > pg_catalog.clock_timestamp()
    RETURNING l.slot, l.owner
), logged AS (
    INSERT INTO lockapi.audit (namespace, action, target, reason)
    SELECT $1::text, 'release lease', $2::text || ' of ' || t.owner, $3::text FROM taken AS t
)
SELECT t.owner FROM taken AS t ORDER BY t.slot
