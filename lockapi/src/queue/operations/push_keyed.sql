-- Pushes jobs, with unique or idempotency keys or without, and with groups in $14 or without. Of several for one key in the batch, the first
-- takes effect. Those that would change its job have to be retried; the others return the same job.
--
-- Promises: at most one job with a unique key waits or runs in a queue. An idempotency key always refers to
-- the job of its first push. A job has only one of the two keys. A job with a group is parked. Returns the number of the job and the
-- outcome: 0 new, 1 existing, 2 changed, 3 retry, 4 not changed because it runs. A job of which only the payload is changed keeps
-- the key by which it is limited. Numbers of new jobs increase in the order of the arrays. A job that is returned is as
-- durable as a new one: its push may be one whose session ended while its commit waited for a standby, which
-- everybody sees, and which a promotion may lose. So the statement writes to the WAL in this case too, and its
-- commit waits for everything that was written before.
-- Index: push_key_pkey and job_unique, whose collation no other index has; job_pkey.
-- Race: two pushes of a new key conflict at ON CONFLICT DO NOTHING. The second waits for the first to commit
-- and has to be retried, because its snapshot does not show the row of the first. A job that is being claimed
-- or settled is locked: it is skipped, and the push has to be retried. What has expired is replaced only if the locked row has:
-- another push may have taken its place since.
WITH want AS MATERIALIZED (
    SELECT w.*,
           CASE WHEN w.of_group OPERATOR(pg_catalog.<>) '' THEN w.of_group END AS grouped,
           greatest(timestamp with time zone 'epoch'
                        OPERATOR(pg_catalog.+) (w.at OPERATOR(pg_catalog.*) interval '1 microsecond'),
                    pg_catalog.statement_timestamp())
               OPERATOR(pg_catalog.+) (w.delay OPERATOR(pg_catalog.*) interval '1 microsecond') AS due,
           pg_catalog.row_number() OVER (PARTITION BY w.namespace, w.queue, w.idempotency_key ORDER BY w.n) AS nth_push,
           pg_catalog.row_number() OVER (PARTITION BY w.namespace, w.queue, w.unique_key ORDER BY w.n) AS nth_unique,
           pg_catalog.min(w.n) OVER (PARTITION BY w.namespace, w.queue, w.idempotency_key) AS first_push,
           pg_catalog.min(w.n) OVER (PARTITION BY w.namespace, w.queue, w.unique_key) AS first_unique
      FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]), pg_catalog.unnest($2::pg_catalog.text[]),
                      pg_catalog.unnest($3::pg_catalog.text[]), pg_catalog.unnest($4::pg_catalog.text[]),
                      pg_catalog.unnest($5::pg_catalog.int8[]), pg_catalog.unnest($6::pg_catalog.int8[]),
                      pg_catalog.unnest($7::pg_catalog.int8[]), pg_catalog.unnest($8::pg_catalog.int8[]),
                      pg_catalog.unnest($9::pg_catalog.text[]), pg_catalog.unnest($10::pg_catalog.int8[]),
                      pg_catalog.unnest($11::pg_catalog.text[]), pg_catalog.unnest($13::pg_catalog.int8[]),
                      pg_catalog.unnest($14::pg_catalog.text[]), pg_catalog.unnest($15::pg_catalog.text[]))
           WITH ORDINALITY
        AS w (namespace, queue, name, payload, priority, at, delay, max_attempts, unique_key, mode, idempotency_key, ttl,
              of_group, headers, n)
), told AS MATERIALIZED (
    SELECT w.n, o.job
      FROM want AS w
     CROSS JOIN LATERAL (
           SELECT k.job
             FROM lockapi.push_key AS k
            WHERE k.namespace OPERATOR(pg_catalog.=) w.namespace AND k.queue OPERATOR(pg_catalog.=) w.queue
              AND k.key OPERATOR(pg_catalog.=) w.idempotency_key
           OFFSET 0) AS o
     WHERE w.idempotency_key OPERATOR(pg_catalog.<>) ''
), turn AS MATERIALIZED (
    SELECT w.*
      FROM want AS w
     WHERE (w.idempotency_key OPERATOR(pg_catalog.=) '' OR w.nth_push OPERATOR(pg_catalog.=) 1)
       AND (w.unique_key OPERATOR(pg_catalog.=) '' OR w.nth_unique OPERATOR(pg_catalog.=) 1)
       AND NOT EXISTS (SELECT FROM told AS t WHERE t.n OPERATOR(pg_catalog.=) w.n)
), there AS MATERIALIZED (
    SELECT t.n, o.id, t.mode, o.waits AND (t.mode OPERATOR(pg_catalog.>) 0 OR o.expired) AS to_change,
           NOT o.waits AND t.mode OPERATOR(pg_catalog.>) 0 AS runs
      FROM turn AS t
     CROSS JOIN LATERAL (
           SELECT j.id, j.token IS NULL AS waits,
                  j.token IS NULL AND j.attempt OPERATOR(pg_catalog.=) 0
                      AND coalesce(j.expires_at OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp(), false) AS expired
             FROM lockapi.job AS j
            WHERE j.namespace COLLATE pg_catalog."POSIX" OPERATOR(pg_catalog.=) t.namespace
              AND j.queue COLLATE pg_catalog."POSIX" OPERATOR(pg_catalog.=) t.queue
              AND j.unique_key OPERATOR(pg_catalog.=) t.unique_key
           OFFSET 0) AS o
     WHERE t.unique_key OPERATOR(pg_catalog.<>) ''
), held AS MATERIALIZED (
    SELECT j.id,
           j.attempt OPERATOR(pg_catalog.=) 0
               AND coalesce(j.expires_at OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp(), false) AS expired
      FROM lockapi.job AS j
     WHERE j.id OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT t.id FROM there AS t WHERE t.to_change)) AND j.token IS NULL
       AND (j.attempt OPERATOR(pg_catalog.=) 0
                AND coalesce(j.expires_at OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp(), false)
            OR j.id OPERATOR(pg_catalog.=) ANY (SELECT t.id FROM there AS t WHERE t.mode OPERATOR(pg_catalog.>) 0))
     ORDER BY j.id OPERATOR(pg_catalog.+) 0
       FOR UPDATE OF j SKIP LOCKED
), changed AS (
    UPDATE lockapi.job AS j
       SET (name, payload, headers, priority, max_attempts, attempt, error, errors, expires_at, group_key, due_at, run_at) = (
               SELECT t.name, t.payload::pg_catalog.json,
                      CASE WHEN o.anew OR (j.headers OPERATOR(pg_catalog.?) 'limit-by') IS NOT TRUE
                           THEN CASE WHEN o.anew THEN h.headers ELSE nullif(h.headers OPERATOR(pg_catalog.-) 'limit-by'::pg_catalog.text, '{}') END
                           ELSE coalesce(h.headers, '{}')
                                    OPERATOR(pg_catalog.||) pg_catalog.jsonb_build_object('limit-by', j.headers OPERATOR(pg_catalog.->) 'limit-by') END,
                      CASE WHEN o.anew THEN t.priority ELSE j.priority END,
                      CASE WHEN o.anew THEN t.max_attempts ELSE j.max_attempts END,
                      CASE WHEN o.anew THEN 0 ELSE j.attempt END,
                      CASE WHEN o.anew THEN NULL ELSE j.error END,
                      CASE WHEN o.anew THEN NULL ELSE j.errors END,
                      CASE WHEN NOT o.anew THEN j.expires_at
                           WHEN t.ttl OPERATOR(pg_catalog.>) 0
                           THEN t.due OPERATOR(pg_catalog.+) (t.ttl OPERATOR(pg_catalog.*) interval '1 microsecond') END,
                      CASE WHEN o.anew THEN t.grouped ELSE j.group_key END,
                      CASE WHEN NOT o.anew THEN j.due_at WHEN t.grouped IS NOT NULL THEN t.due END,
                      CASE WHEN NOT o.anew THEN j.run_at
                           WHEN t.grouped IS NULL THEN t.due
                           ELSE timestamp with time zone '20000-01-01 00:00:00+00' END
                 FROM turn AS t
                 JOIN LATERAL (
                      SELECT x.id, h.expired OR t.mode OPERATOR(pg_catalog.=) 1 AS anew
                        FROM there AS x
                        JOIN held AS h ON h.id OPERATOR(pg_catalog.=) x.id
                       WHERE x.n OPERATOR(pg_catalog.=) t.n) AS o ON true
                 JOIN LATERAL (
                      SELECT CASE WHEN t.headers OPERATOR(pg_catalog.<>) '' THEN t.headers::pg_catalog.jsonb END AS headers) AS h ON true
                WHERE o.id OPERATOR(pg_catalog.=) j.id)
     WHERE j.id OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT h.id FROM held AS h))
    RETURNING j.id
), numbered AS MATERIALIZED (
    SELECT t.n, pg_catalog.nextval('lockapi.job_seq'::pg_catalog.regclass) AS id
      FROM (SELECT t.n
              FROM turn AS t
             WHERE NOT EXISTS (SELECT FROM there AS o WHERE o.n OPERATOR(pg_catalog.=) t.n)
             ORDER BY t.n
            OFFSET 0) AS t
), fresh AS (
    INSERT INTO lockapi.push_key AS k (namespace, queue, key, job)
    SELECT t.namespace, t.queue, t.idempotency_key, d.id
      FROM turn AS t
      JOIN numbered AS d ON d.n OPERATOR(pg_catalog.=) t.n
     WHERE t.idempotency_key OPERATOR(pg_catalog.<>) ''
     ORDER BY t.namespace, t.queue, t.idempotency_key
    ON CONFLICT DO NOTHING
    RETURNING k.namespace, k.queue, k.key, k.job
), place AS MATERIALIZED (
    SELECT t.n, f.job AS id
      FROM turn AS t
      JOIN fresh AS f ON f.namespace OPERATOR(pg_catalog.=) t.namespace AND f.queue OPERATOR(pg_catalog.=) t.queue
                     AND f.key OPERATOR(pg_catalog.=) t.idempotency_key
     WHERE t.idempotency_key OPERATOR(pg_catalog.<>) ''
     UNION ALL
    SELECT t.n, d.id
      FROM turn AS t
      JOIN numbered AS d ON d.n OPERATOR(pg_catalog.=) t.n
     WHERE t.idempotency_key OPERATOR(pg_catalog.=) ''
), pushed AS (
    INSERT INTO lockapi.job (id, run_at, due_at, group_key, created_at, max_attempts, priority, namespace, queue, unique_key,
                             name, payload, expires_at, headers)
    SELECT p.id,
           CASE WHEN t.grouped IS NULL THEN t.due ELSE timestamp with time zone '20000-01-01 00:00:00+00' END,
           CASE WHEN t.grouped IS NOT NULL THEN t.due END, t.grouped,
           pg_catalog.statement_timestamp(), t.max_attempts, t.priority, t.namespace, t.queue,
           CASE WHEN t.unique_key OPERATOR(pg_catalog.<>) '' THEN t.unique_key END, t.name,
           t.payload::pg_catalog.json,
           CASE WHEN t.ttl OPERATOR(pg_catalog.>) 0
                THEN t.due OPERATOR(pg_catalog.+) (t.ttl OPERATOR(pg_catalog.*) interval '1 microsecond') END,
           CASE WHEN t.headers OPERATOR(pg_catalog.<>) '' THEN t.headers::pg_catalog.jsonb END
      FROM place AS p
      JOIN turn AS t ON t.n OPERATOR(pg_catalog.=) p.n
     ORDER BY t.namespace, t.queue, t.unique_key, t.n
    ON CONFLICT (namespace COLLATE pg_catalog."POSIX", queue COLLATE pg_catalog."POSIX", unique_key)
          WHERE unique_key IS NOT NULL DO NOTHING
    RETURNING id
), found AS MATERIALIZED (
    SELECT t.n,
           coalesce(u.id, c.id, CASE WHEN NOT o.to_change THEN o.id END) AS id,
           CASE WHEN u.id IS NOT NULL THEN 0 WHEN c.id IS NOT NULL THEN 2 WHEN o.runs THEN 4 ELSE 1 END AS how
      FROM turn AS t
      LEFT JOIN place AS p ON p.n OPERATOR(pg_catalog.=) t.n
      LEFT JOIN pushed AS u ON u.id OPERATOR(pg_catalog.=) p.id
      LEFT JOIN there AS o ON o.n OPERATOR(pg_catalog.=) t.n
      LEFT JOIN changed AS c ON c.id OPERATOR(pg_catalog.=) o.id
)
SELECT w.n, coalesce(t.job, f.id) AS id,
       CASE WHEN t.job IS NOT NULL THEN 1
            WHEN f.id IS NULL THEN 3
            WHEN f.n OPERATOR(pg_catalog.=) w.n THEN f.how
            ELSE 1 END::pg_catalog.int8 AS how,
       (SELECT pg_catalog.count(pg_catalog.pg_notify('lockapi', x.topic::pg_catalog.text))
          FROM pg_catalog.unnest($12::pg_catalog.int8[]) AS x (topic))
           OPERATOR(pg_catalog.+) (
       SELECT pg_catalog.count(pg_catalog.pg_logical_emit_message(true, 'lockapi', '')) OPERATOR(pg_catalog.*) 0
         FROM (SELECT FROM told UNION ALL SELECT FROM there LIMIT 1) AS x) AS told
  FROM want AS w
  LEFT JOIN told AS t ON t.n OPERATOR(pg_catalog.=) w.n
  LEFT JOIN found AS f
    ON f.n OPERATOR(pg_catalog.=) CASE WHEN w.idempotency_key OPERATOR(pg_catalog.<>) '' THEN w.first_push
                                       WHEN w.unique_key OPERATOR(pg_catalog.<>) '' AND w.mode OPERATOR(pg_catalog.=) 0
                                       THEN w.first_unique
                                       ELSE w.n END
