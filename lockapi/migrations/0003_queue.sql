-- Queues: one row a job. A job that is done leaves the table, so that it stays as small as the
-- work that is left; what ended is kept in the archive if somebody wants to see it.
--
-- No index holds a column that a claim or a heartbeat changes, so both update the row in place
-- (HOT): a page has room for a second version of each of its rows.
-- Columns that change come before those that do not, which keeps the log of an update short.
--
-- After ANALYZE of an emptied table the planner takes all indexes that any condition fits to be
-- equally good, and keeps its plan when the table has filled. So each way to find rows has one
-- index that its conditions fit, and no other: what orders jobs is id + 0, which no condition on id
-- fits, and unique keys and times of expiry are indexed with a collation of their own, which compares
-- the same bytes.

SET LOCAL search_path = pg_catalog, pg_temp;

CREATE SEQUENCE lockapi.job_seq AS int8 MINVALUE 1 NO CYCLE CACHE 1;

COMMENT ON SEQUENCE lockapi.job_seq IS 'Source of the numbers of jobs.';

CREATE SEQUENCE lockapi.delivery_seq AS int8 MINVALUE 1 NO CYCLE CACHE 1;

COMMENT ON SEQUENCE lockapi.delivery_seq IS 'Source of the tokens of deliveries, which increase from each delivery of a job to its next.';

CREATE TABLE lockapi.job (
    id           int8             NOT NULL DEFAULT pg_catalog.nextval('lockapi.job_seq'::pg_catalog.regclass),
    run_at       timestamptz      NOT NULL,
    created_at   timestamptz      NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    token        int8,
    claim        int8,
    lease_until  timestamptz,
    started_at   timestamptz,
    attempt      int4             NOT NULL DEFAULT 0,
    max_attempts int4             NOT NULL,
    size         int4             NOT NULL GENERATED ALWAYS AS (pg_catalog.octet_length(payload::text)) STORED,
    priority     int2             NOT NULL,
    worker       text,
    error        text,
    namespace    text COLLATE "C" NOT NULL,
    queue        text COLLATE "C" NOT NULL,
    unique_key   text COLLATE "C",
    name         text             NOT NULL,
    payload      json             NOT NULL,
    expires_at   timestamptz,
    errors       jsonb,
    CONSTRAINT job_pkey PRIMARY KEY (id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 1);

CREATE INDEX job_due ON lockapi.job (namespace, queue, priority, run_at, (id + 0));
CREATE UNIQUE INDEX job_unique ON lockapi.job (namespace COLLATE "POSIX", queue COLLATE "POSIX", unique_key)
    WHERE unique_key IS NOT NULL;
-- For the sweep of jobs that nobody claims.
CREATE INDEX job_expires ON lockapi.job (namespace COLLATE "POSIX", expires_at, (id + 0))
    WHERE expires_at IS NOT NULL;

COMMENT ON TABLE lockapi.job IS 'Jobs that wait, for now or for their time, and jobs that run.';
COMMENT ON COLUMN lockapi.job.id IS 'Its number.';
COMMENT ON COLUMN lockapi.job.run_at IS 'Not claimed before this time.';
COMMENT ON COLUMN lockapi.job.created_at IS 'When it was pushed.';
COMMENT ON COLUMN lockapi.job.token IS 'The token of the delivery that runs it; NULL while it waits.';
COMMENT ON COLUMN lockapi.job.claim IS 'The number of the claim that it was last delivered by: a claim that is repeated because its answer was lost finds by it what the first has taken.';
COMMENT ON COLUMN lockapi.job.lease_until IS 'Delivered again from this time on; NULL while it waits.';
COMMENT ON COLUMN lockapi.job.started_at IS 'When it was last delivered.';
COMMENT ON COLUMN lockapi.job.attempt IS 'How often it has been delivered.';
COMMENT ON COLUMN lockapi.job.max_attempts IS 'How often it is delivered at most.';
COMMENT ON COLUMN lockapi.job.size IS 'How many bytes the payload has.';
COMMENT ON COLUMN lockapi.job.priority IS 'Smaller ones are claimed first: 0 urgent, 1 high, 2 normal, 3 low.';
COMMENT ON COLUMN lockapi.job.worker IS 'Who it was last delivered to, in the words of the worker.';
COMMENT ON COLUMN lockapi.job.error IS 'Why the last attempt failed.';
COMMENT ON COLUMN lockapi.job.namespace IS 'Namespace of the backend.';
COMMENT ON COLUMN lockapi.job.queue IS 'Name of the queue.';
COMMENT ON COLUMN lockapi.job.unique_key IS 'No other job of the queue has this key while this one waits or runs.';
COMMENT ON COLUMN lockapi.job.name IS 'What kind of job it is; workers choose the handler by it.';
COMMENT ON COLUMN lockapi.job.payload IS 'What the handler is given.';
COMMENT ON COLUMN lockapi.job.expires_at IS 'From this time on it is a dead letter instead of being delivered for the first time; NULL: never.';
COMMENT ON COLUMN lockapi.job.errors IS 'What became of its last ten attempts that failed: attempt, at (microseconds since 1970), worker, error.';

CREATE TABLE lockapi.job_archive (
    id           int8             NOT NULL,
    status       text             NOT NULL CHECK (status IN ('completed', 'failed', 'cancelled')),
    run_at       timestamptz      NOT NULL,
    created_at   timestamptz      NOT NULL,
    started_at   timestamptz,
    completed_at timestamptz      NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    attempt      int4             NOT NULL,
    max_attempts int4             NOT NULL,
    priority     int2             NOT NULL,
    worker       text,
    error        text,
    namespace    text COLLATE "C" NOT NULL,
    queue        text COLLATE "C" NOT NULL,
    unique_key   text COLLATE "C",
    name         text             NOT NULL,
    payload      json             NOT NULL,
    expires_at   timestamptz,
    errors       jsonb,
    CONSTRAINT job_archive_pkey PRIMARY KEY (id)
);

CREATE INDEX job_archive_expires ON lockapi.job_archive (namespace, expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX job_archive_failed ON lockapi.job_archive (namespace, queue, (id + 0)) WHERE status = 'failed';

COMMENT ON TABLE lockapi.job_archive IS 'Jobs that ended: dead letters (failed), what was cancelled, and what was completed where the queue keeps it.';
COMMENT ON COLUMN lockapi.job_archive.status IS 'completed, failed or cancelled.';
COMMENT ON COLUMN lockapi.job_archive.completed_at IS 'When it ended.';
COMMENT ON COLUMN lockapi.job_archive.expires_at IS 'Deleted from this time on, as the queue of whoever ended it said; NULL: by hand, or with the log of its task.';
COMMENT ON COLUMN lockapi.job_archive.errors IS 'What became of its last ten attempts that failed: attempt, at (microseconds since 1970), worker, error.';

CREATE TABLE lockapi.queue (
    namespace  text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    paused     bool             NOT NULL,
    changed_at timestamptz      NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (namespace, name)
);

COMMENT ON TABLE lockapi.queue IS 'Queues that somebody has paused or resumed; the others need no row.';
COMMENT ON COLUMN lockapi.queue.namespace IS 'Namespace of the backend.';
COMMENT ON COLUMN lockapi.queue.name IS 'Name of the queue.';
COMMENT ON COLUMN lockapi.queue.paused IS 'Whether nothing is claimed from it.';
COMMENT ON COLUMN lockapi.queue.changed_at IS 'When it was last paused or resumed.';

CREATE TABLE lockapi.push_key (
    namespace  text COLLATE "C" NOT NULL,
    queue      text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    job        int8             NOT NULL,
    created_at timestamptz      NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (namespace, queue, key)
);

CREATE INDEX push_key_created ON lockapi.push_key (created_at);

COMMENT ON TABLE lockapi.push_key IS 'Idempotency keys of pushes, kept for a day or more: a push that is repeated finds the job of the first.';
COMMENT ON COLUMN lockapi.push_key.namespace IS 'Namespace of the backend.';
COMMENT ON COLUMN lockapi.push_key.queue IS 'Name of the queue.';
COMMENT ON COLUMN lockapi.push_key.key IS 'The key.';
COMMENT ON COLUMN lockapi.push_key.job IS 'The number that the job got.';
COMMENT ON COLUMN lockapi.push_key.created_at IS 'When it was first used.';

CREATE VIEW lockapi.task_view AS
    SELECT id, namespace, queue, name, payload,
           CASE WHEN lease_until > clock_timestamp() THEN 'processing' ELSE 'pending' END AS status,
           worker, created_at, run_at, started_at, NULL::timestamptz AS completed_at,
           attempt, max_attempts, priority, error,
           lease_until - clock_timestamp() AS lease_left
      FROM lockapi.job
     UNION ALL
    SELECT id, namespace, queue, name, payload, status,
           worker, created_at, run_at, started_at, completed_at,
           attempt, max_attempts, priority, error, NULL
      FROM lockapi.job_archive;

COMMENT ON VIEW lockapi.task_view IS 'Jobs as a person wants to read them: pending, processing, completed, failed or cancelled, by whom and when.';
