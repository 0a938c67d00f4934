-- Clears what was taken, reserved and blocked.
--
-- Promises: afterwards the key is as if it had never been used.
-- Index: the primary key of rate_limit, and rate_reservation_due.
-- Race: rows are locked in the order of their keys; a row that was deleted meanwhile needs no reset.
-- Reservations are deleted by a volatile function, which sees what others reserved before the lock was
-- acquired.
WITH want AS MATERIALIZED (
    SELECT w.*
      FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS w (namespace, key, n)
), locked AS MATERIALIZED (
    SELECT l.namespace, l.key
      FROM want AS w
      JOIN lockapi.rate_limit AS l ON l.namespace = w.namespace AND l.key = w.key
                                  AND l.namespace = ($1::text[])[1] AND l.key = ANY ($2::text[])
     ORDER BY l.namespace, l.key
       FOR UPDATE OF l
), freed AS MATERIALIZED (
    SELECT lockapi.forget_reservations(k.namespace, k.key)
      FROM (SELECT DISTINCT k.namespace, k.key FROM locked AS k OFFSET 0) AS k
), gone AS (
    DELETE FROM lockapi.rate_limit AS l
     USING (SELECT DISTINCT k.namespace, k.key FROM locked AS k) AS k
     WHERE l.namespace = k.namespace AND l.key = k.key
       AND l.namespace = ($1::text[])[1] AND l.key = ANY (ARRAY(SELECT x.key FROM locked AS x))
    RETURNING 1
)
SELECT w.n, (SELECT pg_catalog.count(*) FROM gone) + (SELECT pg_catalog.count(*) FROM freed) >= 0 AS done
  FROM want AS w
