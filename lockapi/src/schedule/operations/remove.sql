-- Removes a task, unless $4, after which it was removed before. Runs that were fired continue to their end; runs that are
-- held back are skipped.
--
-- Promises: once it is committed, no node fires the task. Its log is kept. Returns whether the task existed.
-- Where nothing is found, it may have been done by a session that ended while its commit waited for a standby: the
-- statement writes to the WAL, so that its commit waits for that too.
-- Index: task_pkey; task_run_held.
-- Race: a fire that has locked the task first takes effect. A run that it has held back is not in the snapshot of this
-- statement: it is skipped when this is run again, as is what is held of a task that is not there. A task that somebody
-- has set in between stays, and so do its runs.
WITH gone AS (
    DELETE FROM lockapi.task AS t
     WHERE t.namespace = $1::text AND t.scheduler = $2::text AND t.name = $3::text
       AND NOT $4::bool
    RETURNING t.name
), dropped AS (
    UPDATE lockapi.task_run AS r
       SET decided = 'skipped', error = 'the task was removed'
     WHERE r.namespace COLLATE "POSIX" = $1::text AND r.scheduler COLLATE "POSIX" = $2::text
       AND r.task COLLATE "POSIX" = $3::text AND r.decided = 'held'
       AND (EXISTS (SELECT FROM gone)
            OR NOT EXISTS (SELECT FROM lockapi.task AS t
                            WHERE t.namespace = $1::text AND t.scheduler = $2::text AND t.name = $3::text OFFSET 0))
)
SELECT EXISTS (SELECT FROM gone)
       OR (SELECT pg_catalog.pg_logical_emit_message(true, 'lockapi', '')) IS NULL AS found
