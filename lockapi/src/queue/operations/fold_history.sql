-- Moves parts of the history into its minutes and hours, among the $6 that follow the part of the namespace $1, the queue $2, the
-- minute $3, the name $4 and the number $5.
--
-- Promises: each part is added once to its minute and once to its hour. A part that was written less than five minutes ago stays:
-- its program may send it again. Sums stop at the largest int8. Returns how many parts were moved, how many were examined, and
-- the key of the last examined one.
-- Index: job_history_part_pkey, for at most $6 rows; job_history_pkey.
-- Race: a part is deleted in the transaction that adds it, and one that another sweep has locked is skipped. Two sweeps with
-- parts of one hour wait for each other, in the order of the key, so that they do not deadlock; the second adds to what the first
-- has committed.
WITH part AS MATERIALIZED (
    SELECT p.namespace, p.queue, p.minute, p.name, p.part,
           p.written_at <= pg_catalog.clock_timestamp() - interval '5 minutes' AS settled
      FROM lockapi.job_history_part AS p
     WHERE (p.namespace, p.queue, p.minute, p.name, p.part)
           > ($1::text, $2::text, timestamptz 'epoch' + $3::int8 * interval '1 microsecond', $4::text, $5::int8)
     ORDER BY p.namespace, p.queue, p.minute, p.name, p.part
     LIMIT $6::int8
), over AS MATERIALIZED (
    SELECT o.place
      FROM part AS p
     CROSS JOIN LATERAL (
           SELECT g.ctid AS place
             FROM lockapi.job_history_part AS g
            WHERE g.namespace = p.namespace AND g.queue = p.queue AND g.minute = p.minute AND g.name = p.name
              AND g.part = p.part
              FOR UPDATE OF g SKIP LOCKED) AS o
     WHERE p.settled
), gone AS (
    DELETE FROM lockapi.job_history_part AS p
     WHERE p.ctid = ANY (ARRAY(SELECT o.place FROM over AS o))
    RETURNING p.*
), counted AS (
    SELECT g.namespace, g.queue, h.hourly, CASE WHEN h.hourly THEN pg_catalog.date_trunc('hour', g.minute, 'UTC') ELSE g.minute END AS at,
           g.name, u.n,
           pg_catalog.sum(CASE WHEN u.n = 1 THEN g.completed END) AS completed,
           pg_catalog.sum(CASE WHEN u.n = 1 THEN g.failed END) AS failed,
           pg_catalog.sum(CASE WHEN u.n = 1 THEN g.dead END) AS dead,
           pg_catalog.sum(CASE WHEN u.n = 1 THEN g.waited END) AS waited,
           pg_catalog.sum(CASE WHEN u.n = 1 THEN g.ran END) AS ran,
           pg_catalog.sum(u.waits) AS waits, pg_catalog.sum(u.runs) AS runs
      FROM gone AS g
     CROSS JOIN (VALUES (false), (true)) AS h (hourly)
     CROSS JOIN LATERAL unnest(g.waits, g.runs) WITH ORDINALITY AS u (waits, runs, n)
     GROUP BY 1, 2, 3, 4, 5, 6
), stored AS (
    INSERT INTO lockapi.job_history AS t (namespace, queue, hourly, at, name, completed, failed, dead, waited, ran, waits, runs)
    SELECT c.namespace, c.queue, c.hourly, c.at, c.name,
           least(pg_catalog.sum(c.completed), 9223372036854775807), least(pg_catalog.sum(c.failed), 9223372036854775807),
           least(pg_catalog.sum(c.dead), 9223372036854775807), least(pg_catalog.sum(c.waited), 9223372036854775807),
           least(pg_catalog.sum(c.ran), 9223372036854775807),
           pg_catalog.array_agg(least(c.waits, 9223372036854775807)::int8 ORDER BY c.n) FILTER (WHERE c.waits IS NOT NULL),
           pg_catalog.array_agg(least(c.runs, 9223372036854775807)::int8 ORDER BY c.n) FILTER (WHERE c.runs IS NOT NULL)
      FROM counted AS c
     GROUP BY c.namespace, c.queue, c.hourly, c.at, c.name
     ORDER BY c.namespace, c.queue, c.hourly, c.at, c.name
        ON CONFLICT (namespace, queue, hourly, at, name) DO UPDATE
       SET completed = least(t.completed::numeric + EXCLUDED.completed, 9223372036854775807),
           failed = least(t.failed::numeric + EXCLUDED.failed, 9223372036854775807),
           dead = least(t.dead::numeric + EXCLUDED.dead, 9223372036854775807),
           waited = least(t.waited::numeric + EXCLUDED.waited, 9223372036854775807),
           ran = least(t.ran::numeric + EXCLUDED.ran, 9223372036854775807),
           waits = (SELECT pg_catalog.array_agg(least(coalesce(u.a, 0)::numeric + coalesce(u.b, 0), 9223372036854775807)::int8 ORDER BY u.n)
                      FROM unnest(t.waits, EXCLUDED.waits) WITH ORDINALITY AS u (a, b, n)),
           runs = (SELECT pg_catalog.array_agg(least(coalesce(u.a, 0)::numeric + coalesce(u.b, 0), 9223372036854775807)::int8 ORDER BY u.n)
                     FROM unnest(t.runs, EXCLUDED.runs) WITH ORDINALITY AS u (a, b, n))
)
SELECT (SELECT pg_catalog.count(*) FROM gone) AS moved,
       (SELECT pg_catalog.count(*) FROM part) AS seen,
       l.namespace, l.queue, (extract(epoch FROM l.minute) * 1000000)::int8 AS minute, l.name, l.part
  FROM (SELECT true) AS one
  LEFT JOIN (SELECT p.namespace, p.queue, p.minute, p.name, p.part
               FROM part AS p
              ORDER BY p.namespace DESC, p.queue DESC, p.minute DESC, p.name DESC, p.part DESC
              LIMIT 1) AS l ON true
