-- What handlers returned for their jobs. A row is written by the statement that completes the delivery, so there is one if, and
-- only if, the job was completed with a result. It is as good as none when its time is over: then it is swept.
--
-- It is not in the archive: a job whose handler returns nothing would have a column more, what is archived for long would keep
-- results for as long, and a queue that archives nothing could have no results. The table is logged, as the completion is.
--
-- No index mentions a time: a result is found by the number of its job, and swept in ranges of these.

SET LOCAL search_path = pg_catalog, pg_temp;

CREATE TABLE lockapi.job_result (
    id           int8        NOT NULL,
    completed_at timestamptz NOT NULL,
    expires_at   timestamptz NOT NULL,
    namespace    text        NOT NULL,
    queue        text        NOT NULL,
    result       json        NOT NULL,
    CONSTRAINT job_result_pkey PRIMARY KEY (id)
);

COMMENT ON TABLE lockapi.job_result IS 'What the handlers of completed jobs returned.';
COMMENT ON COLUMN lockapi.job_result.id IS 'Number of the job.';
COMMENT ON COLUMN lockapi.job_result.completed_at IS 'When the job was completed.';
COMMENT ON COLUMN lockapi.job_result.expires_at IS 'Until when the result is kept.';
COMMENT ON COLUMN lockapi.job_result.namespace IS 'Namespace of the backend.';
COMMENT ON COLUMN lockapi.job_result.queue IS 'Name of the queue.';
COMMENT ON COLUMN lockapi.job_result.result IS 'The result.';
