-- The tables of the demo. No constraint here keeps a run from being completed twice: the queue does.

CREATE SCHEMA fleet;
COMMENT ON SCHEMA fleet IS 'Recurring tasks of the lockapi demo; made anew by every run of it.';

CREATE TABLE fleet.task (
    name      text        NOT NULL PRIMARY KEY,
    every     interval    NOT NULL,
    work      interval    NOT NULL,
    enabled   bool        NOT NULL,
    first_run timestamptz NOT NULL
);
COMMENT ON TABLE fleet.task IS 'What is to be done; lockapi.task has when next.';
COMMENT ON COLUMN fleet.task.work IS 'How long its simulated work takes.';

CREATE TABLE fleet.run (
    id        int8        GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task      text        NOT NULL,
    due       timestamptz NOT NULL,
    node      text        NOT NULL,
    status    text        NOT NULL CHECK (status IN ('running', 'completed', 'failed')),
    started   timestamptz NOT NULL DEFAULT clock_timestamp(),
    completed timestamptz,
    error     text,
    token     int8
);
COMMENT ON TABLE fleet.run IS 'What workers have written: one row for each attempt; lockapi.task_log has one for each run.';
COMMENT ON COLUMN fleet.run.due IS 'The time that the task was due.';
COMMENT ON COLUMN fleet.run.completed IS 'When it ended, well or not.';
COMMENT ON COLUMN fleet.run.token IS 'The token of the delivery it ran under.';
CREATE INDEX run_task_due ON fleet.run (task, due);
CREATE INDEX run_running ON fleet.run (task) WHERE status = 'running';

CREATE TABLE fleet.node (
    name      text NOT NULL PRIMARY KEY,
    library   text NOT NULL,
    abandoned int8 NOT NULL,
    refused   int8 NOT NULL
);
COMMENT ON TABLE fleet.node IS 'The workers, the database libraries they use, and what they have counted.';

CREATE TABLE fleet.disturbance (
    at   timestamptz NOT NULL,
    node text        NOT NULL,
    how  text        NOT NULL
);
COMMENT ON TABLE fleet.disturbance IS 'What was done to which worker.';

CREATE TABLE fleet.span (
    starts_at timestamptz NOT NULL,
    ends_at   timestamptz NOT NULL
);
COMMENT ON TABLE fleet.span IS 'From when until when tasks fall due.';
