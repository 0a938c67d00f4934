-- The jobs of tasks of a scheduler are found among any number of jobs that its queue has besides.
--
-- Claims and completions change none of its columns, and jobs without a task have no entry.

SET LOCAL search_path = pg_catalog, pg_temp;

CREATE INDEX job_task ON lockapi.job ((namespace || ''), (queue || ''), task) WHERE task IS NOT NULL;
