-- Notes that node $2 begins the run whose job is number $1, under the token $3 of its delivery.
WITH due AS MATERIALIZED (
    SELECT r.task, r.fire_at, t.work
      FROM lockapi.task_run AS r
      JOIN fleet.task AS t ON t.name = r.task
      JOIN fleet.span AS s ON r.fire_at <= s.ends_at
     WHERE r.job = $1
), left_behind AS (
    -- An earlier delivery was lost, or this would not be the latest.
    UPDATE fleet.run AS r
       SET status = 'failed', error = 'delivery lost', completed = clock_timestamp()
      FROM due
     WHERE r.task = due.task AND r.due = due.fire_at AND r.status = 'running' AND r.token < $3
)
INSERT INTO fleet.run (task, due, node, status, token)
SELECT due.task, due.fire_at, $2, 'running', $3
  FROM due
RETURNING id, (SELECT (extract(epoch FROM work) * 1000)::int8 FROM due) AS work
