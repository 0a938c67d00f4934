-- Compares what was due with what was run.
WITH due AS (
    SELECT t.name AS task, due
      FROM fleet.task AS t, fleet.span AS s,
           generate_series(t.first_run, s.ends_at, t.every) AS due
     WHERE t.enabled
), attempted AS (
    SELECT due.task, due.due,
           count(*) FILTER (WHERE run.status = 'completed') AS completed,
           count(*) FILTER (WHERE run.status = 'failed') AS failed
      FROM due
      LEFT JOIN fleet.run AS run ON run.task = due.task AND run.due = due.due
     GROUP BY due.task, due.due
), recovery AS (
    -- From what happened to the node of a failed run until the same was begun again.
    SELECT extract(epoch FROM next.started - disturbed.at)::float8 AS seconds
      FROM fleet.run AS lost,
           LATERAL (SELECT max(d.at) AS at
                      FROM fleet.disturbance AS d
                     WHERE d.node = lost.node AND d.at BETWEEN lost.started AND lost.completed
                   ) AS disturbed,
           LATERAL (SELECT min(r.started) AS started
                      FROM fleet.run AS r
                     WHERE r.task = lost.task AND r.due = lost.due AND r.id > lost.id
                   ) AS next
     WHERE lost.status = 'failed'
), turn AS (
    SELECT n.library,
           lag(n.library) OVER (PARTITION BY r.task ORDER BY r.id) AS earlier
      FROM fleet.run AS r
      JOIN fleet.node AS n ON n.name = r.node
)
SELECT (SELECT count(*) FROM fleet.task) AS tasks,
       (SELECT count(*) FROM fleet.task WHERE NOT enabled) AS disabled,
       count(*) AS due,
       count(*) FILTER (WHERE completed = 1) AS once,
       count(*) FILTER (WHERE completed > 1) AS twice,
       count(*) FILTER (WHERE completed = 0) AS missed,
       (SELECT count(*)
          FROM fleet.run AS r
         WHERE r.status = 'completed'
           AND NOT EXISTS (SELECT FROM due WHERE due.task = r.task AND due.due = r.due)
       ) AS uncalled,
       count(*) FILTER (WHERE completed = 1 AND failed > 0) AS recovered,
       (SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) FROM recovery) AS median,
       (SELECT max(seconds) FROM recovery) AS longest,
       (SELECT count(*) FROM turn WHERE library <> earlier) AS passed_on,
       (SELECT coalesce(sum(abandoned), 0)::int8 FROM fleet.node) AS abandoned,
       (SELECT coalesce(sum(refused), 0)::int8 FROM fleet.node) AS refused
  FROM attempted
