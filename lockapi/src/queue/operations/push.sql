-- Pushes jobs without keys.
--
-- Promises: all of them or none; numbers grow in the order of the arrays. Whoever listens is told
-- of the topics in $9 when it commits.
-- Index: none is read. Race: none.
WITH pushed AS (
    INSERT INTO lockapi.job (run_at, created_at, max_attempts, priority, namespace, queue, name, payload)
    SELECT greatest(timestamptz 'epoch' + w.at * interval '1 microsecond', pg_catalog.statement_timestamp())
               + w.delay * interval '1 microsecond',
           pg_catalog.statement_timestamp(), w.max_attempts, w.priority, w.namespace, w.queue, w.name, w.payload::json
      FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::int8[], $6::int8[], $7::int8[], $8::int8[])
        AS w (namespace, queue, name, payload, priority, at, delay, max_attempts)
    RETURNING id
)
SELECT pg_catalog.array_agg(p.id) AS ids,
       (SELECT pg_catalog.count(pg_catalog.pg_notify('lockapi', t.topic::text)) FROM unnest($9::int8[]) AS t (topic)) AS told
  FROM pushed AS p
