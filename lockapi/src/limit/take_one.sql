-- Takes permits of one limit with the generic cell rate algorithm: the simple form of take.sql.
--
-- Promises: as take.sql; returns no row if nothing fits, or if a row has to be created or put in
-- order first.
-- Index: the primary key of rate_limit; no indexed column changes, so the update is HOT.
-- Race: an update that waited for another checks the new version of its row, and reads the clock again.
UPDATE lockapi.rate_limit AS l
   SET (tat, taken, at) = (
           SELECT c.now + greatest(0, l.tat - c.now)
                      + greatest(0, least($5::int8, ($4::int8 - greatest(0, l.tat - c.now)) / $3::int8)) * $3::int8,
                  greatest(0, least($5::int8, ($4::int8 - greatest(0, l.tat - c.now)) / $3::int8)),
                  c.now
             FROM (SELECT greatest(l.at, lockapi.clock()) AS now OFFSET 0) AS c)
 WHERE l.key = $2::text AND l.namespace = $1::text
   AND l.tat - lockapi.clock() <= $4::int8 - $3::int8
   AND l.at <= lockapi.clock()
   AND (l.blocked_until IS NULL OR l.blocked_until <= lockapi.clock())
   AND (l.due IS NULL OR l.due > lockapi.clock())
   AND (SELECT CASE WHEN $6::bool
                    THEN pg_catalog.set_config('synchronous_commit', 'off', true) <> ''
                    ELSE true END)
RETURNING 1::int8 AS n, l.taken AS outcome, l.tat, 0::int8 AS blocked_until, l.at AS now
