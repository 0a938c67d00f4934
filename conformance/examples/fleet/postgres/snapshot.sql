-- How things stand. A task that is due every e seconds from f on was due floor((now - f) / e) + 1
-- times, and not at all before f.
SELECT extract(epoch FROM clock_timestamp() - s.starts_at)::float8 AS elapsed,
       (SELECT coalesce(sum(1 + floor(
                   extract(epoch FROM least(clock_timestamp(), s.ends_at) - t.first_run)
                   / extract(epoch FROM t.every))), 0)::int8
          FROM fleet.task AS t
         WHERE t.enabled AND t.first_run <= least(clock_timestamp(), s.ends_at)) AS due,
       r.completed, r.failed, n.abandoned, n.refused
  FROM fleet.span AS s,
       (SELECT count(*) FILTER (WHERE status = 'completed') AS completed,
               count(*) FILTER (WHERE status = 'failed') AS failed
          FROM fleet.run) AS r,
       (SELECT coalesce(sum(abandoned), 0)::int8 AS abandoned,
               coalesce(sum(refused), 0)::int8 AS refused
          FROM fleet.node) AS n
