-- Takes the lease $2 of the namespace $1, in all its slots, from its holders, for the reason $3.
--
-- Promises: the lease is free at once, even with a minimum hold. No row has the former holder's token any
-- more, so its next renewal, release and check-in return that the lease is lost. Returns a row for each
-- owner. The action is recorded in the audit log, in the same transaction. In an epoch that is not the first, a
-- lease that its holder has not renewed may have another holder by now: it is free later, as release.sql says.
-- Where nobody has it, it may have been taken by a session that ended while its commit waited for a standby: the
-- statement writes to the WAL, so that its commit waits for that too.
-- Index: the primary keys of lease and epoch.
-- Race: a renewal conflicts with this statement at the row, where the second finds what the first wrote. A
-- transaction that has checked in keeps the next holder out until it ends, as always.
WITH taken AS (
    UPDATE lockapi.lease AS l
       SET fence = pg_catalog.nextval('lockapi.fence_seq') << 10,
           released_at = CASE WHEN l.renewed_at > (SELECT e.begun_at FROM lockapi.epoch AS e WHERE e.one)
                              THEN pg_catalog.clock_timestamp()
                              ELSE (SELECT e.begun_at FROM lockapi.epoch AS e WHERE e.one) END,
           held_until = NULL,
           expires_at = pg_catalog.clock_timestamp()
     WHERE l.namespace = $1::text AND l.key = $2::text
       AND l.released_at IS NULL AND l.expires_at > pg_catalog.clock_timestamp()
    RETURNING l.slot, l.owner
), logged AS (
    INSERT INTO lockapi.audit (namespace, action, target, reason)
    SELECT $1::text, 'release lease', $2::text || ' of ' || t.owner, $3::text FROM taken AS t
)
SELECT o.owner
  FROM (SELECT t.owner, t.slot FROM taken AS t
         UNION ALL
        SELECT NULL, NULL
          FROM (SELECT pg_catalog.pg_logical_emit_message(true, 'lockapi', '') AS at OFFSET 0) AS x
         WHERE NOT EXISTS (SELECT FROM taken) AND x.at IS NULL) AS o
 ORDER BY o.slot
