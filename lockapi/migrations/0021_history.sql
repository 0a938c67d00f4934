-- How many jobs of each name a queue has completed, failed and buried, and how long they waited and ran: by the minute for an
-- hour, by the hour for a week.
--
-- A program sums in memory, and once a minute inserts a row for each minute, queue and name into job_history_part. Nothing
-- updates such a row, so programs never wait for each other, and an insertion that is repeated after a lost answer finds its
-- rows by their key. Sweeps move the parts into job_history, where a minute or an hour is one row, whoever worked in it.
-- A row of either has about 300 bytes: seven numbers, and two lists of counts in buckets whose bounds double, from 1 ms on,
-- without the zeros at the end. A name has at most 60 + 168 rows, 70 kB, beside the parts of a quarter of an hour.

SET LOCAL search_path = pg_catalog, pg_temp;

CREATE TABLE lockapi.job_history_part (
    minute     timestamptz      NOT NULL,
    part       int8             NOT NULL,
    written_at timestamptz      NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    completed  int8             NOT NULL,
    failed     int8             NOT NULL,
    dead       int8             NOT NULL,
    waited     int8             NOT NULL,
    ran        int8             NOT NULL,
    waits      int8[]           NOT NULL CHECK (pg_catalog.cardinality(waits) BETWEEN 1 AND 24),
    runs       int8[]           NOT NULL CHECK (pg_catalog.cardinality(runs) BETWEEN 1 AND 24),
    namespace  text COLLATE "C" NOT NULL,
    queue      text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    CONSTRAINT job_history_part_pkey PRIMARY KEY (namespace, queue, minute, name, part)
);

COMMENT ON TABLE lockapi.job_history_part IS 'What programs have counted since the last sweep.';
COMMENT ON COLUMN lockapi.job_history_part.minute IS 'The minute, by the clock of the server.';
COMMENT ON COLUMN lockapi.job_history_part.part IS 'A random number, the same for all that a program wrote together.';
COMMENT ON COLUMN lockapi.job_history_part.written_at IS 'When it was written.';
COMMENT ON COLUMN lockapi.job_history_part.completed IS 'Jobs that were completed.';
COMMENT ON COLUMN lockapi.job_history_part.failed IS 'Attempts that failed.';
COMMENT ON COLUMN lockapi.job_history_part.dead IS 'Those of them after which the job was a dead letter.';
COMMENT ON COLUMN lockapi.job_history_part.waited IS 'How long the jobs had been due when an attempt began, together, in microseconds.';
COMMENT ON COLUMN lockapi.job_history_part.ran IS 'How long the attempts ran, together, in microseconds.';
COMMENT ON COLUMN lockapi.job_history_part.waits IS 'How many attempts began after 1 ms at most, 2 ms, 4 ms and so on; the 24th: later.';
COMMENT ON COLUMN lockapi.job_history_part.runs IS 'How many attempts ran for so long.';
COMMENT ON COLUMN lockapi.job_history_part.namespace IS 'Namespace of the backend.';
COMMENT ON COLUMN lockapi.job_history_part.queue IS 'Name of the queue.';
COMMENT ON COLUMN lockapi.job_history_part.name IS 'The name of the jobs; empty: other names of a program that had too many.';

CREATE TABLE lockapi.job_history (
    at        timestamptz      NOT NULL,
    completed int8             NOT NULL,
    failed    int8             NOT NULL,
    dead      int8             NOT NULL,
    waited    int8             NOT NULL,
    ran       int8             NOT NULL,
    hourly    bool             NOT NULL,
    waits     int8[]           NOT NULL,
    runs      int8[]           NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    queue     text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    CONSTRAINT job_history_pkey PRIMARY KEY (namespace, queue, hourly, at, name)
) WITH (fillfactor = 70);

COMMENT ON TABLE lockapi.job_history IS 'What all programs have counted, by the minute and by the hour.';
COMMENT ON COLUMN lockapi.job_history.at IS 'When the minute or hour began.';
COMMENT ON COLUMN lockapi.job_history.completed IS 'As in job_history_part.';
COMMENT ON COLUMN lockapi.job_history.failed IS 'As in job_history_part.';
COMMENT ON COLUMN lockapi.job_history.dead IS 'As in job_history_part.';
COMMENT ON COLUMN lockapi.job_history.waited IS 'As in job_history_part.';
COMMENT ON COLUMN lockapi.job_history.ran IS 'As in job_history_part.';
COMMENT ON COLUMN lockapi.job_history.hourly IS 'Whether the row is of an hour.';
COMMENT ON COLUMN lockapi.job_history.waits IS 'As in job_history_part.';
COMMENT ON COLUMN lockapi.job_history.runs IS 'As in job_history_part.';
COMMENT ON COLUMN lockapi.job_history.namespace IS 'Namespace of the backend.';
COMMENT ON COLUMN lockapi.job_history.queue IS 'Name of the queue.';
COMMENT ON COLUMN lockapi.job_history.name IS 'As in job_history_part.';

-- The time that this fraction of the attempts did not exceed, from counts in buckets: within a bucket they are taken to be
-- spread evenly, and the last has no end, so it is taken to be as the others, twice its beginning. NULL without attempts.
CREATE FUNCTION lockapi.history_quantile(counts int8[], fraction float8) RETURNS interval
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
    AS $$
    SELECT (b.low + (b.high - b.low) * greatest(b.wanted - b.before, 0) / b.count) * interval '1 millisecond'
      FROM (SELECT u.n, u.count::float8 AS count,
                   sum(u.count) OVER (ORDER BY u.n)::float8 - u.count AS before,
                   history_quantile.fraction * sum(u.count) OVER ()::float8 AS wanted,
                   CASE WHEN u.n = 1 THEN 0 ELSE power(2::float8, u.n - 2) END AS low, power(2::float8, u.n - 1) AS high
              FROM unnest(history_quantile.counts) WITH ORDINALITY AS u (count, n)) AS b
     WHERE b.count > 0 AND b.before + b.count >= b.wanted
     ORDER BY b.n
     LIMIT 1
    $$;

CREATE VIEW lockapi.queue_history AS
    SELECT t.namespace, t.queue, t.name,
           CASE WHEN t.hourly THEN 'hour' ELSE 'minute' END AS step, t.at,
           t.completed, t.failed, t.dead,
           t.waited / 1000000.0 AS waited_seconds, t.ran / 1000000.0 AS ran_seconds,
           lockapi.history_quantile(t.waits, 0.5) AS wait_p50, lockapi.history_quantile(t.waits, 0.95) AS wait_p95,
           lockapi.history_quantile(t.runs, 0.5) AS run_p50, lockapi.history_quantile(t.runs, 0.95) AS run_p95
      FROM (SELECT s.namespace, s.queue, s.hourly, s.at, s.name,
                   sum(s.completed) AS completed, sum(s.failed) AS failed, sum(s.dead) AS dead,
                   sum(s.waited) AS waited, sum(s.ran) AS ran,
                   array_agg(least(s.waits, 9223372036854775807)::int8 ORDER BY s.n) FILTER (WHERE s.waits IS NOT NULL) AS waits,
                   array_agg(least(s.runs, 9223372036854775807)::int8 ORDER BY s.n) FILTER (WHERE s.runs IS NOT NULL) AS runs
              FROM (SELECT r.namespace, r.queue, r.hourly, r.at, r.name, u.n,
                           sum(CASE WHEN u.n = 1 THEN r.completed END) AS completed,
                           sum(CASE WHEN u.n = 1 THEN r.failed END) AS failed,
                           sum(CASE WHEN u.n = 1 THEN r.dead END) AS dead,
                           sum(CASE WHEN u.n = 1 THEN r.waited END) AS waited,
                           sum(CASE WHEN u.n = 1 THEN r.ran END) AS ran,
                           sum(u.waits) AS waits, sum(u.runs) AS runs
                      FROM (SELECT h.namespace, h.queue, h.hourly, h.at, h.name,
                                   h.completed, h.failed, h.dead, h.waited, h.ran, h.waits, h.runs
                              FROM lockapi.job_history AS h
                             UNION ALL
                            SELECT p.namespace, p.queue, o.hourly,
                                   CASE WHEN o.hourly THEN date_trunc('hour', p.minute, 'UTC') ELSE p.minute END, p.name,
                                   p.completed, p.failed, p.dead, p.waited, p.ran, p.waits, p.runs
                              FROM lockapi.job_history_part AS p
                             CROSS JOIN (VALUES (false), (true)) AS o (hourly)) AS r
                     CROSS JOIN LATERAL unnest(r.waits, r.runs) WITH ORDINALITY AS u (waits, runs, n)
                     GROUP BY r.namespace, r.queue, r.hourly, r.at, r.name, u.n) AS s
             GROUP BY s.namespace, s.queue, s.hourly, s.at, s.name) AS t;

COMMENT ON VIEW lockapi.queue_history IS 'What became of the attempts at jobs, a row for each namespace, queue, name, and minute or hour in which there were any; minutes are kept for an hour, and hours for a week.';
