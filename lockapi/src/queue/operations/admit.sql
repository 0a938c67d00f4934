-- Admits parked jobs of a queue: those of at most $3 groups that are due, as far as their limits allow.
--
-- Promises, index and race: those of lockapi.admit(), in the migration that makes it.
SELECT a.admitted, a.looked, a.next_due FROM lockapi.admit($1::text, $2::text, $3::int8) AS a
