-- Pauses of one name of jobs in a queue.
--
-- Jobs of a paused name stay as they are: claims leave them out. So a pause writes one row, however many jobs wait, and
-- a job that is pushed or tried again needs to know nothing of it.

SET LOCAL search_path = pg_catalog, pg_temp;

CREATE TABLE lockapi.paused_name (
    paused_until timestamptz,
    changed_at   timestamptz      NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    namespace    text COLLATE "C" NOT NULL,
    queue        text COLLATE "C" NOT NULL,
    name         text COLLATE "C" NOT NULL,
    CONSTRAINT paused_name_pkey PRIMARY KEY (namespace, queue, name)
);

COMMENT ON TABLE lockapi.paused_name IS 'Names of jobs that are paused in a queue.';
COMMENT ON COLUMN lockapi.paused_name.paused_until IS 'Until when; NULL: until it is resumed.';
COMMENT ON COLUMN lockapi.paused_name.changed_at IS 'When it was last paused.';
COMMENT ON COLUMN lockapi.paused_name.namespace IS 'Namespace of the backend.';
COMMENT ON COLUMN lockapi.paused_name.queue IS 'Name of the queue.';
COMMENT ON COLUMN lockapi.paused_name.name IS 'The name of the jobs.';
