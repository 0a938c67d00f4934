-- Logs that run $1 was completed and sets when its task is due next; the same when repeated.
WITH done AS (
    UPDATE fleet.run
       SET status = 'completed', completed = clock_timestamp(), error = NULL
     WHERE id = $1
    RETURNING task, due, completed
)
UPDATE fleet.task AS t
   SET last_run = done.completed, next_run = done.due + t.every
  FROM done
 WHERE t.name = done.task
