-- Completes deliveries.
--
-- Promises: a job is completed only by the token of its latest delivery, which was made in the epoch of the
-- server, and only once. All tokens come from one sequence, so a token that is in a row was drawn for the job of
-- that row. The statement runs on connections of the program too, which enter no epoch: on a server that was
-- promoted, and where none was entered since, every delivery is of an earlier one. A server that does not tell its
-- timeline has -1.
-- Returns the numbers of the jobs, followed by their tokens.
-- Index: job_pkey; no other index fits. Comparisons with the whole batch use a hashed subquery that is not
-- turned into a join.
-- Race: a claim that took over the job first has changed its token, and the token is checked again on the
-- locked row. Of two completions of one delivery, the second finds no row.
WITH done AS (
    DELETE FROM lockapi.job AS j
     WHERE j.id OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.int8[])
       AND ((j.id, j.token) OPERATOR(pg_catalog.=) ANY (
               SELECT w.id, w.token
                 FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.int8[]), pg_catalog.unnest($2::pg_catalog.int8[]))
                   AS w (id, token)
                WHERE w.token OPERATOR(pg_catalog.>=) (
                        SELECT CASE WHEN CASE WHEN e.timeline OPERATOR(pg_catalog.=) -1 THEN false
                                              ELSE e.timeline OPERATOR(pg_catalog.<>) ('x' OPERATOR(pg_catalog.||) pg_catalog.substr(
                                                       pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8)
                                                   )::bit(32)::pg_catalog.int8 END
                                    THEN 9223372036854775807
                                    WHEN e.number OPERATOR(pg_catalog.>) e.first THEN e.number OPERATOR(pg_catalog.<<) 21
                                    ELSE 0 END
                          FROM lockapi.epoch AS e WHERE e.one))) IS TRUE
    RETURNING j.*
), kept AS (
    INSERT INTO lockapi.job_archive (id, token, status, run_at, created_at, started_at, attempt, max_attempts,
                                     priority, worker, error, namespace, queue, unique_key, name, payload, task,
                                     errors, group_key, headers, expires_at)
    SELECT d.id, d.token, 'completed', d.run_at, d.created_at, d.started_at, d.attempt, d.max_attempts,
           d.priority, d.worker, d.error, d.namespace, d.queue, d.unique_key, d.name, d.payload, d.task, d.errors, d.group_key, d.headers,
           CASE WHEN d.task IS NULL
                THEN pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+)
                         ((SELECT pg_catalog.max(w.keep)
                             FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.int8[]), pg_catalog.unnest($2::pg_catalog.int8[]),
                                             pg_catalog.unnest($3::pg_catalog.int8[]))
                               AS w (id, token, keep)
                            WHERE w.id OPERATOR(pg_catalog.=) d.id AND w.token OPERATOR(pg_catalog.=) d.token) OPERATOR(pg_catalog.*) interval '1 microsecond') END
      FROM done AS d
     WHERE d.task IS NOT NULL
        OR (d.id, d.token) OPERATOR(pg_catalog.=) ANY (
               SELECT w.id, w.token
                 FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.int8[]), pg_catalog.unnest($2::pg_catalog.int8[]),
                                 pg_catalog.unnest($3::pg_catalog.int8[]))
                   AS w (id, token, keep)
                WHERE w.keep OPERATOR(pg_catalog.>=) 0)
)
SELECT pg_catalog.array_agg(d.id) OPERATOR(pg_catalog.||) pg_catalog.array_agg(d.token) AS completed FROM done AS d
