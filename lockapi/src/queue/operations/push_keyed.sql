-- Pushes jobs with unique or idempotency keys; of several for one key in the batch the first
-- counts, and the others are to be asked again.
--
-- Promises: at most one job with a unique key waits or runs in a queue; an idempotency key stands
-- for the job of its first push. A job has one of the two keys. Answers the job's number and how: 0 new, 1 existing, 2 changed,
-- 3 ask again.
-- Index: push_key_pkey and job_unique.
-- Race: two pushes of a new key meet at ON CONFLICT DO NOTHING, where the second waits for the
-- first to commit and is to ask again, since its snapshot does not show the first's row. A job that
-- is being claimed or settled is locked: it is skipped, and asked for again.
WITH want AS MATERIALIZED (
    SELECT w.*, pg_catalog.row_number() OVER (PARTITION BY w.namespace, w.queue, w.idempotency_key ORDER BY w.n) AS nth_push,
           pg_catalog.row_number() OVER (PARTITION BY w.namespace, w.queue, w.unique_key ORDER BY w.n) AS nth_unique
      FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::int8[], $6::int8[], $7::int8[], $8::int8[],
                  $9::text[], $10::int8[], $11::text[])
           WITH ORDINALITY
        AS w (namespace, queue, name, payload, priority, at, delay, max_attempts, unique_key, mode, idempotency_key, n)
), told AS MATERIALIZED (
    SELECT w.n, k.job
      FROM want AS w
      JOIN lockapi.push_key AS k ON k.namespace = w.namespace AND k.queue = w.queue AND k.key = w.idempotency_key
     WHERE w.idempotency_key <> ''
), turn AS MATERIALIZED (
    SELECT w.*
      FROM want AS w
     WHERE (w.idempotency_key = '' OR w.nth_push = 1)
       AND (w.unique_key = '' OR w.nth_unique = 1)
       AND NOT EXISTS (SELECT FROM told AS t WHERE t.n = w.n)
), there AS MATERIALIZED (
    SELECT t.n, j.id, j.token IS NULL AND t.mode > 0 AS to_change
      FROM turn AS t
      JOIN lockapi.job AS j ON j.namespace = t.namespace AND j.queue = t.queue AND j.unique_key = t.unique_key
     WHERE t.unique_key <> ''
), held AS MATERIALIZED (
    SELECT t.n, j.id
      FROM there AS t
      JOIN lockapi.job AS j ON j.id = t.id
     WHERE t.to_change AND j.token IS NULL
     ORDER BY j.id
       FOR UPDATE OF j SKIP LOCKED
), changed AS (
    UPDATE lockapi.job AS j
       SET name = t.name,
           payload = t.payload::json,
           priority = CASE WHEN t.mode = 1 THEN t.priority ELSE j.priority END,
           max_attempts = CASE WHEN t.mode = 1 THEN t.max_attempts ELSE j.max_attempts END,
           run_at = CASE WHEN t.mode = 1
                         THEN greatest(timestamptz 'epoch' + t.at * interval '1 microsecond', pg_catalog.statement_timestamp())
                                  + t.delay * interval '1 microsecond'
                         ELSE j.run_at END
      FROM held AS h
      JOIN turn AS t ON t.n = h.n
     WHERE j.id = h.id
    RETURNING h.n, j.id
), fresh AS (
    INSERT INTO lockapi.push_key AS k (namespace, queue, key, job)
    SELECT t.namespace, t.queue, t.idempotency_key, pg_catalog.nextval('lockapi.job_seq')
      FROM turn AS t
     WHERE t.idempotency_key <> ''
     ORDER BY t.namespace, t.queue, t.idempotency_key
    ON CONFLICT DO NOTHING
    RETURNING k.namespace, k.queue, k.key, k.job
), place AS MATERIALIZED (
    SELECT t.n, f.job AS id
      FROM turn AS t
      JOIN fresh AS f ON f.namespace = t.namespace AND f.queue = t.queue AND f.key = t.idempotency_key
     WHERE t.idempotency_key <> ''
     UNION ALL
    SELECT t.n, pg_catalog.nextval('lockapi.job_seq')
      FROM turn AS t
     WHERE t.unique_key <> '' AND NOT EXISTS (SELECT FROM there AS o WHERE o.n = t.n)
), pushed AS (
    INSERT INTO lockapi.job (id, run_at, created_at, max_attempts, priority, namespace, queue, unique_key, name, payload)
    SELECT p.id,
           greatest(timestamptz 'epoch' + t.at * interval '1 microsecond', pg_catalog.statement_timestamp())
               + t.delay * interval '1 microsecond',
           pg_catalog.statement_timestamp(), t.max_attempts, t.priority, t.namespace, t.queue,
           nullif(t.unique_key, ''), t.name, t.payload::json
      FROM place AS p
      JOIN turn AS t ON t.n = p.n
     ORDER BY t.namespace, t.queue, t.unique_key, t.n
    ON CONFLICT (namespace, queue, unique_key) WHERE unique_key IS NOT NULL DO NOTHING
    RETURNING id
), found AS MATERIALIZED (
    SELECT t.n,
           coalesce(u.id, c.id, CASE WHEN NOT o.to_change THEN o.id END) AS id,
           CASE WHEN u.id IS NOT NULL THEN 0 WHEN c.id IS NOT NULL THEN 2 ELSE 1 END AS how
      FROM turn AS t
      LEFT JOIN place AS p ON p.n = t.n
      LEFT JOIN pushed AS u ON u.id = p.id
      LEFT JOIN changed AS c ON c.n = t.n
      LEFT JOIN there AS o ON o.n = t.n
)
SELECT w.n, coalesce(t.job, f.id) AS id,
       CASE WHEN t.job IS NOT NULL THEN 1 WHEN f.id IS NOT NULL THEN f.how ELSE 3 END::int8 AS how,
       (SELECT pg_catalog.count(pg_catalog.pg_notify('lockapi', x.topic::text)) FROM unnest($12::int8[]) AS x (topic)) AS told
  FROM want AS w
  LEFT JOIN told AS t ON t.n = w.n
  LEFT JOIN found AS f ON f.n = w.n
