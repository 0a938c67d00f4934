-- Notes that run $1 was completed; the same when repeated.
UPDATE fleet.run
   SET status = 'completed', completed = clock_timestamp(), error = NULL
 WHERE id = $1
