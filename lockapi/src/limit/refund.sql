-- Gives back what was taken.
--
-- Promises: what has flowed back since it was taken is not given back a second time, so what others
-- have taken meanwhile stays taken. Of several requests for a key the first counts; the others, and
-- nobody else, are told to ask again.
-- Index: the primary key of rate_limit; no indexed column changes, so the update is HOT.
-- Race: the arithmetic is done on the latest version of the row, in the order of the keys. A request
-- must not be repeated when its answer is lost.
WITH want AS MATERIALIZED (
    SELECT DISTINCT ON (w.namespace COLLATE "C", w.key COLLATE "C") w.*
      FROM unnest($1::text[], $2::text[], $3::int8[], $4::int8[], $5::int8[])
           WITH ORDINALITY AS w (namespace, key, price, length, at, n)
     ORDER BY w.namespace COLLATE "C", w.key COLLATE "C", w.n
), refunded AS (
    UPDATE lockapi.rate_limit AS l
       SET tat = CASE WHEN w.length = 0
                      THEN l.tat - greatest(0, w.price - greatest(0, lockapi.clock() - w.at))
                      ELSE l.tat END,
           used = CASE WHEN w.length > 0 AND w.at >= l.started
                       THEN greatest(0, l.used - w.price) ELSE l.used END,
           before = CASE WHEN w.length > 0 AND w.at < l.started AND w.at >= l.started - w.length
                         THEN greatest(0, l.before - w.price) ELSE l.before END
      FROM want AS w
     WHERE l.namespace = w.namespace AND l.key = w.key
       AND l.namespace = ANY (ARRAY(SELECT x.namespace FROM want AS x))
       AND l.key = ANY (ARRAY(SELECT x.key FROM want AS x))
    RETURNING w.n
)
SELECT w.n, true AS done
  FROM want AS w
 WHERE (SELECT pg_catalog.count(*) FROM refunded) >= 0
