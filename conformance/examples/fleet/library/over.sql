-- Whether the time of the fleet has passed and every time that a task was due has a completed run.
SELECT CASE WHEN clock_timestamp() > s.ends_at
            THEN NOT EXISTS (SELECT FROM fleet.task AS t,
                                         generate_series(t.first_run, s.ends_at, t.every) AS d (at)
                              WHERE t.enabled
                                AND NOT EXISTS (SELECT FROM fleet.run AS r
                                                 WHERE r.task = t.name AND r.due = d.at AND r.status = 'completed'))
            ELSE false END AS over
  FROM fleet.span AS s
