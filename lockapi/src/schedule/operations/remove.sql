-- Removes a task. Runs that were fired continue to their end; runs that are held back are skipped.
--
-- Promises: once it is committed, no node fires the task. Its log is kept. Returns whether the task existed.
-- Where nothing is found, it may have been done by a session that ended while its commit waited for a standby: the
-- statement writes to the WAL, so that its commit waits for that too.
-- Index: task_pkey; task_run_held.
-- Race: a fire that has locked the task first takes effect.
WITH gone AS (
    DELETE FROM lockapi.task AS t
     WHERE t.namespace = $1::text AND t.scheduler = $2::text AND t.name = $3::text
    RETURNING t.name
), dropped AS (
    UPDATE lockapi.task_run AS r
       SET decided = 'skipped', error = 'the task was removed'
      FROM gone AS g
     WHERE r.namespace COLLATE "POSIX" = $1::text AND r.scheduler COLLATE "POSIX" = $2::text
       AND r.task COLLATE "POSIX" = g.name AND r.decided = 'held'
)
SELECT EXISTS (SELECT FROM gone)
       OR (SELECT pg_catalog.pg_logical_emit_message(true, 'lockapi', '')) IS NULL AS found
