-- Refunds what was taken.
--
-- Promises: what has been replenished since it was taken is not refunded a second time, so what others have
-- taken meanwhile stays taken. All requests for a key take effect.
-- Index: the primary key of rate_limit; no indexed column changes, so the update is HOT.
-- Race: the arithmetic is done on the latest version of the row, in the order of the keys. A request must not
-- be retried when its answer is lost.
WITH want AS MATERIALIZED (
    SELECT w.namespace COLLATE "C" AS namespace, w.key COLLATE "C" AS key,
           pg_catalog.array_agg(w.price) AS prices, pg_catalog.array_agg(w.length) AS lengths,
           pg_catalog.array_agg(w.at) AS ats
      FROM unnest($1::text[], $2::text[], $3::int8[], $4::int8[], $5::int8[])
           AS w (namespace, key, price, length, at)
     GROUP BY 1, 2
     ORDER BY 1, 2
), refunded AS (
    UPDATE lockapi.rate_limit AS l
       SET (tat, used, before) = (
               -- A "tat" below "at" means no debt, so the result is bounded and stays within int8.
               SELECT greatest(least(l.tat, l.at),
                               l.tat - coalesce(pg_catalog.sum(greatest(0, b.price - greatest(0, lockapi.clock() - b.at)))
                                                FILTER (WHERE b.length = 0), 0))::int8,
                      greatest(0, l.used - coalesce(pg_catalog.sum(b.price)
                                                    FILTER (WHERE b.length > 0 AND b.at >= l.started), 0))::int8,
                      greatest(0, l.before - coalesce(pg_catalog.sum(b.price)
                                                      FILTER (WHERE b.length > 0 AND b.at < l.started
                                                                AND b.at >= l.started - l.span_before), 0))::int8
                 FROM unnest(w.prices, w.lengths, w.ats) AS b (price, length, at))
      FROM want AS w
     WHERE l.namespace = w.namespace AND l.key = w.key
       AND l.namespace = ($1::text[])[1] AND l.key = ANY (ARRAY(SELECT x.key FROM want AS x))
    RETURNING 1
)
SELECT w.n, (SELECT pg_catalog.count(*) FROM refunded) >= 0 AS done
  FROM unnest($1::text[]) WITH ORDINALITY AS w (namespace, n)
