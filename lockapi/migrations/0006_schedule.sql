-- Schedulers: recurring tasks, and what became of each of their runs. A run is a job of the queue
-- that has the name of the scheduler.

SET LOCAL search_path = pg_catalog, pg_temp;

-- A job that knows its task is kept in the archive when it is completed, whatever else the queue
-- does: it is part of the log, and is deleted with that. The token there tells which delivery ended
-- the job.
ALTER TABLE lockapi.job ADD COLUMN task text COLLATE "C";
ALTER TABLE lockapi.job_archive ADD COLUMN token int8, ADD COLUMN task text COLLATE "C";

COMMENT ON COLUMN lockapi.job.task IS 'The recurring task that it is a run of; NULL for other jobs.';
COMMENT ON COLUMN lockapi.job_archive.token IS 'The token of its last delivery.';
COMMENT ON COLUMN lockapi.job_archive.task IS 'The recurring task that it was a run of; NULL for other jobs.';

CREATE TABLE lockapi.task (
    next_at      timestamptz,
    version      int8             NOT NULL DEFAULT 1,
    enabled      bool             NOT NULL DEFAULT true,
    created_at   timestamptz      NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    changed_at   timestamptz      NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    every        int8,
    timeout      int8             NOT NULL,
    misfire      int8             NOT NULL,
    misfire_most int8             NOT NULL,
    overlap      int8             NOT NULL CHECK (overlap BETWEEN 0 AND 2),
    max_attempts int4             NOT NULL,
    priority     int2             NOT NULL,
    namespace    text COLLATE "C" NOT NULL,
    scheduler    text COLLATE "C" NOT NULL,
    name         text COLLATE "C" NOT NULL,
    cron         text,
    zone         text,
    job          text             NOT NULL,
    payload      json             NOT NULL,
    CONSTRAINT task_pkey PRIMARY KEY (namespace, scheduler, name),
    CONSTRAINT task_recurs CHECK ((every IS NULL) <> (cron IS NULL) AND (cron IS NULL) = (zone IS NULL))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);

COMMENT ON TABLE lockapi.task IS 'Recurring tasks.';
COMMENT ON COLUMN lockapi.task.next_at IS 'When it is due next, whether enabled or not; NULL: never again.';
COMMENT ON COLUMN lockapi.task.version IS 'Counts changes: whoever fires names the version from which the next time was computed.';
COMMENT ON COLUMN lockapi.task.enabled IS 'Whether it is fired when it is due.';
COMMENT ON COLUMN lockapi.task.created_at IS 'When it was first set.';
COMMENT ON COLUMN lockapi.task.changed_at IS 'When it was last changed, enabled, disabled or fired: what is later than now was written before the clock was set back.';
COMMENT ON COLUMN lockapi.task.every IS 'Microseconds between two times that it is due; NULL with a cron expression.';
COMMENT ON COLUMN lockapi.task.timeout IS 'Microseconds that a delivery of a run may last; 0 is no limit.';
COMMENT ON COLUMN lockapi.task.misfire IS 'What becomes of times that were missed: 0 skipped, 1 one run for all, 2 a run for each.';
COMMENT ON COLUMN lockapi.task.misfire_most IS 'With 0 the lateness in microseconds from which on a time is missed, with 2 how many runs at most.';
COMMENT ON COLUMN lockapi.task.overlap IS 'What becomes of a run while one before has not ended: 0 it runs as well, 1 skipped, 2 held back.';
COMMENT ON COLUMN lockapi.task.max_attempts IS 'How often a run is delivered at most.';
COMMENT ON COLUMN lockapi.task.priority IS 'Priority of the jobs.';
COMMENT ON COLUMN lockapi.task.namespace IS 'Namespace of the backend.';
COMMENT ON COLUMN lockapi.task.scheduler IS 'Name of the scheduler, and of the queue that its runs are pushed to.';
COMMENT ON COLUMN lockapi.task.name IS 'Name of the task.';
COMMENT ON COLUMN lockapi.task.cron IS 'Cron expression; NULL with an interval.';
COMMENT ON COLUMN lockapi.task.zone IS 'IANA time zone of the cron expression.';
COMMENT ON COLUMN lockapi.task.job IS 'Name of the jobs.';
COMMENT ON COLUMN lockapi.task.payload IS 'Payload of the jobs.';

CREATE TABLE lockapi.task_run (
    job       int8,
    decided   text             CHECK (decided IN ('held', 'skipped')),
    fire_at   timestamptz      NOT NULL,
    fired_at  timestamptz      NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    missed    int8             NOT NULL DEFAULT 0,
    namespace text COLLATE "C" NOT NULL,
    scheduler text COLLATE "C" NOT NULL,
    task      text COLLATE "C" NOT NULL,
    fired_by  text             NOT NULL,
    error     text,
    CONSTRAINT task_run_pkey PRIMARY KEY (namespace, scheduler, task, fire_at),
    CONSTRAINT task_run_decided CHECK ((job IS NULL) = (decided IS NOT NULL))
) WITH (fillfactor = 90);

-- As in the tables of queues, each way to find rows has one index that its conditions fit.
CREATE INDEX task_run_job ON lockapi.task_run (job) WHERE job IS NOT NULL;
CREATE INDEX task_run_fired ON lockapi.task_run ((namespace || ''), (scheduler || ''), fired_at);
CREATE INDEX task_run_held ON lockapi.task_run (namespace COLLATE "POSIX", scheduler COLLATE "POSIX",
                                                task COLLATE "POSIX", fire_at) WHERE decided = 'held';

COMMENT ON TABLE lockapi.task_run IS 'Runs of tasks: one row for each time that a task was due and that somebody decided on.';
COMMENT ON COLUMN lockapi.task_run.job IS 'Number of its job; NULL while it is held back, and if it was skipped.';
COMMENT ON COLUMN lockapi.task_run.decided IS 'held or skipped; NULL when there is a job.';
COMMENT ON COLUMN lockapi.task_run.fire_at IS 'The time that it was due.';
COMMENT ON COLUMN lockapi.task_run.fired_at IS 'When it was decided on.';
COMMENT ON COLUMN lockapi.task_run.missed IS 'How many due times before it were missed and have no run; counted to 100.';
COMMENT ON COLUMN lockapi.task_run.namespace IS 'Namespace of the backend.';
COMMENT ON COLUMN lockapi.task_run.scheduler IS 'Name of the scheduler.';
COMMENT ON COLUMN lockapi.task_run.task IS 'Name of the task.';
COMMENT ON COLUMN lockapi.task_run.fired_by IS 'Who decided, in the words of the node.';
COMMENT ON COLUMN lockapi.task_run.error IS 'Why it was skipped.';

CREATE VIEW lockapi.task_log AS
    SELECT r.namespace, r.scheduler, r.task, r.fire_at, r.job,
           CASE WHEN r.job IS NULL THEN r.decided
                WHEN j.lease_until > clock_timestamp() THEN 'running'
                WHEN j.id IS NOT NULL THEN 'pending'
                ELSE coalesce(a.status, 'deleted') END AS status,
           coalesce(j.worker, a.worker) AS node,
           coalesce(j.started_at, a.started_at) AS started_at,
           a.completed_at,
           coalesce(r.error, j.error, a.error) AS error,
           coalesce(j.token, a.token) AS token,
           coalesce(j.attempt, a.attempt, 0) AS attempt,
           r.missed, r.fired_by, r.fired_at
      FROM lockapi.task_run AS r
      -- Looked up for each run that is read, and never joined as a whole.
      LEFT JOIN LATERAL (
               SELECT j.id, j.lease_until, j.worker, j.started_at, j.error, j.token, j.attempt
                 FROM lockapi.job AS j WHERE j.id = r.job OFFSET 0) AS j ON true
      LEFT JOIN LATERAL (
               SELECT a.status, a.worker, a.started_at, a.completed_at, a.error, a.token, a.attempt
                 FROM lockapi.job_archive AS a WHERE a.id = r.job OFFSET 0) AS a ON true;

COMMENT ON VIEW lockapi.task_log IS 'Execution log: runs that are held, pending, running, completed, failed, skipped, cancelled or deleted; on which node, under which token, and why they failed.';
