-- Refunds what was taken.
--
-- Promises: what has been replenished since it was taken is not refunded a second time, so what others have
-- taken meanwhile stays taken; no instant is withheld from two refunds. All requests for a key take effect. Where the clock was
-- set back, it is counted at the time of the row.
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
       SET (tat, used, before, withheld_from, withheld) = (
               -- A "tat" below "at" means no debt, so the result is bounded and stays within int8.
               SELECT greatest(least(l.tat, l.at), l.tat - (m.back - m.more))::int8,
                      greatest(0, l.used - m.used)::int8, greatest(0, l.before - m.before)::int8,
                      m.times[1], m.times[2]
                 FROM (SELECT s.*, lockapi.limit_withheld(l.withheld_from, l.withheld, s.since, s.more) AS times
                         FROM (SELECT s.*,
                                      least(s.apart, lockapi.limit_replenished(s.since, l.withheld_from, l.withheld,
                                                                               s.now))::int8 AS more
                                 FROM (SELECT pg_catalog.max(c.now) AS now,
                                              pg_catalog.min(b.at) FILTER (WHERE b.length = 0) AS since,
                                              coalesce(pg_catalog.sum(b.price) FILTER (WHERE b.length = 0), 0) AS back,
                                              coalesce(pg_catalog.sum(least(b.price, lockapi.limit_replenished(
                                                                                b.at, l.withheld_from, l.withheld, c.now)))
                                                           FILTER (WHERE b.length = 0), 0) AS apart,
                                              coalesce(pg_catalog.sum(b.price)
                                                           FILTER (WHERE b.length > 0 AND b.at >= l.started), 0) AS used,
                                              coalesce(pg_catalog.sum(b.price)
                                                           FILTER (WHERE b.length > 0 AND b.at < l.started
                                                                     AND b.at >= l.started - l.span_before), 0) AS before
                                         FROM unnest(w.prices, w.lengths, w.ats) AS b (price, length, at)
                                        CROSS JOIN (SELECT greatest(l.at, lockapi.clock()) AS now OFFSET 0) AS c
                                       OFFSET 0) AS s
                               OFFSET 0) AS s
                       OFFSET 0) AS m)
      FROM want AS w
     WHERE l.namespace = w.namespace AND l.key = w.key
       AND l.namespace = ($1::text[])[1] AND l.key = ANY (ARRAY(SELECT x.key FROM want AS x))
    RETURNING 1
)
SELECT w.n, (SELECT pg_catalog.count(*) FROM refunded) >= 0 AS done
  FROM unnest($1::text[]) WITH ORDINALITY AS w (namespace, n)
