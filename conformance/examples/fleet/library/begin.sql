-- Logs a run of task $1 on node $2 under fencing token $3, if the task is still due.
--
-- It comes after check_in in the same transaction: check_in waits for an earlier holder that is
-- just completing a run, and this statement then sees what that holder wrote.
WITH due AS MATERIALIZED (
    SELECT t.name, t.next_run, t.work
      FROM fleet.task AS t, fleet.span AS s
     WHERE t.name = $1 AND t.enabled
       AND t.next_run <= least(clock_timestamp(), s.ends_at)
), left_behind AS (
    -- An earlier holder died or lost the lock, or this would not be the holder.
    UPDATE fleet.run AS r
       SET status = 'failed', error = 'holder lost', completed = clock_timestamp()
     WHERE r.task = $1 AND r.status = 'running' AND r.fence < $3
)
INSERT INTO fleet.run (task, due, node, status, fence)
SELECT due.name, due.next_run, $2, 'running', $3
  FROM due
RETURNING id, (SELECT (extract(epoch FROM work) * 1000)::int8 FROM due) AS work
