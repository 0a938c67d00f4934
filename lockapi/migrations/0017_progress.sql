-- What handlers tell of their jobs while these run.
--
-- It is not in the row of the job: that would be written anew, payload and all, with each report, which waits for
-- whatever transaction has the job locked; and while an old snapshot is held, so many versions would fill its page, and
-- each further one would get entries in the index of due jobs, which claims read. A row here is small, and only reports
-- and the sweep write it. The table is not logged: reports write no WAL and never wait for the disk. A crash or a
-- promotion empties it, and handlers that still run report again.

SET LOCAL search_path = pg_catalog, pg_temp;

CREATE UNLOGGED TABLE lockapi.job_progress (
    id          int8        NOT NULL,
    token       int8        NOT NULL,
    reported_at timestamptz NOT NULL,
    fraction    float8      NOT NULL CHECK (fraction BETWEEN 0 AND 1),
    note        text        NOT NULL,
    CONSTRAINT job_progress_pkey PRIMARY KEY (id)
) WITH (fillfactor = 50);

COMMENT ON TABLE lockapi.job_progress IS 'What the latest delivery of a job that told anything told last. It is not logged: a crash, or a promotion, empties it.';
COMMENT ON COLUMN lockapi.job_progress.id IS 'Number of the job.';
COMMENT ON COLUMN lockapi.job_progress.token IS 'The token of the delivery.';
COMMENT ON COLUMN lockapi.job_progress.reported_at IS 'When that was written.';
COMMENT ON COLUMN lockapi.job_progress.fraction IS 'How much is done, from 0 to 1.';
COMMENT ON COLUMN lockapi.job_progress.note IS 'In the words of the handler; may be empty.';
