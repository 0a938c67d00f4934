-- Completes deliveries whose handlers returned a result, and stores that. Of several for one delivery in the batch, the first
-- takes effect.
--
-- Promises: as those of ack.sql, which is for deliveries without a result and so does not know of results: a job is completed
-- only by the token of its latest delivery, which was made in the epoch of the server, and only once. A result is stored if, and
-- only if, its delivery completes the job. Returns the numbers of the jobs, followed by their tokens.
-- Index: job_pkey; no other index fits. Comparisons with the whole batch use hashed subqueries that are not turned into a join.
-- Race: a claim that took over the job first has changed its token, and the token is checked again on the locked row. Of two
-- completions of one delivery, the second finds no row. A number is never used again, so there is no earlier result; were
-- there one, because rows were restored, the later one replaces it.
WITH want AS MATERIALIZED (
    SELECT DISTINCT ON (w.id, w.token) w.id, w.token, w.keep, w.result, w.retention
      FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.int8[]), pg_catalog.unnest($2::pg_catalog.int8[]),
                      pg_catalog.unnest($3::pg_catalog.int8[]), pg_catalog.unnest($4::pg_catalog.text[]),
                      pg_catalog.unnest($5::pg_catalog.int8[]))
           WITH ORDINALITY AS w (id, token, keep, result, retention, n)
     WHERE w.token OPERATOR(pg_catalog.>=) (
             SELECT CASE WHEN CASE WHEN e.timeline OPERATOR(pg_catalog.=) -1 THEN false
                                   ELSE e.timeline OPERATOR(pg_catalog.<>) ('x' OPERATOR(pg_catalog.||) pg_catalog.substr(
                                            pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8)
                                        )::bit(32)::pg_catalog.int8 END
                         THEN 9223372036854775807
                         WHEN e.number OPERATOR(pg_catalog.>) e.first THEN e.number OPERATOR(pg_catalog.<<) 21
                         ELSE 0 END
               FROM lockapi.epoch AS e WHERE e.one)
     ORDER BY w.id, w.token, w.n
), done AS (
    DELETE FROM lockapi.job AS j
     WHERE j.id OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.int8[])
       AND ((j.id, j.token) OPERATOR(pg_catalog.=) ANY (SELECT w.id, w.token FROM want AS w)) IS TRUE
    RETURNING j.*
), kept AS (
    INSERT INTO lockapi.job_archive (id, token, status, run_at, created_at, started_at, attempt, max_attempts,
                                     priority, worker, error, namespace, queue, unique_key, name, payload, task,
                                     errors, group_key, headers, expires_at)
    SELECT d.id, d.token, 'completed', d.run_at, d.created_at, d.started_at, d.attempt, d.max_attempts,
           d.priority, d.worker, d.error, d.namespace, d.queue, d.unique_key, d.name, d.payload, d.task, d.errors, d.group_key, d.headers,
           CASE WHEN d.task IS NULL
                THEN pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+)
                         (w.keep OPERATOR(pg_catalog.*) interval '1 microsecond') END
      FROM done AS d
      JOIN want AS w ON w.id OPERATOR(pg_catalog.=) d.id AND w.token OPERATOR(pg_catalog.=) d.token
     WHERE d.task IS NOT NULL OR w.keep OPERATOR(pg_catalog.>=) 0
), stored AS (
    INSERT INTO lockapi.job_result (id, completed_at, expires_at, namespace, queue, result)
    SELECT d.id, pg_catalog.clock_timestamp(),
           pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) (w.retention OPERATOR(pg_catalog.*) interval '1 microsecond'),
           d.namespace, d.queue, w.result::pg_catalog.json
      FROM done AS d
      JOIN want AS w ON w.id OPERATOR(pg_catalog.=) d.id AND w.token OPERATOR(pg_catalog.=) d.token
        ON CONFLICT (id) DO UPDATE
       SET completed_at = EXCLUDED.completed_at, expires_at = EXCLUDED.expires_at, namespace = EXCLUDED.namespace,
           queue = EXCLUDED.queue, result = EXCLUDED.result
)
SELECT pg_catalog.array_agg(d.id) OPERATOR(pg_catalog.||) pg_catalog.array_agg(d.token) AS completed FROM done AS d
