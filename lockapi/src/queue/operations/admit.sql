-- Admits parked jobs of a queue: those of at most $3 groups that are due, as far as their limits allow.
--
-- Promises: those of lockapi.admit(), in the migration that makes it; where another session admits jobs of the queue it does nothing,
-- at once, and "admitted" is null: the connection has other things to do than to wait for that.
-- Index: as there.
-- Race: the lock is the one that the function takes, which then has it already; its statements begin under it.
WITH turn AS MATERIALIZED (
    SELECT pg_catalog.pg_try_advisory_xact_lock(
               lockapi.advisory_key($1::text, pg_catalog.repeat('#', 256) || 'groups ' || $2::text)) AS is_ours
)
SELECT a.admitted, coalesce(a.looked, 0) AS looked, a.next_due
  FROM turn AS t
  LEFT JOIN LATERAL (
           SELECT f.admitted, f.looked, f.next_due
             FROM lockapi.admit($1::text, $2::text, $3::int8) AS f
            WHERE t.is_ours
           OFFSET 0) AS a ON true
