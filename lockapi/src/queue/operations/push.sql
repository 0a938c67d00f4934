-- Pushes jobs without keys.
--
-- Promises: all of them or none; numbers increase in the order of the arrays. Listeners are notified of the
-- topics in $9 at commit. A job with a group in $11 is parked; without any group $11 is empty.
-- Headers are objects in $12, or empty texts; without any $12 is empty.
-- Index: none is read. Race: none.
WITH pushed AS (
    INSERT INTO lockapi.job (run_at, due_at, group_key, created_at, max_attempts, priority, namespace, queue, name, payload,
                             expires_at, headers)
    SELECT CASE WHEN d.grouped IS NULL THEN d.due ELSE timestamp with time zone '20000-01-01 00:00:00+00' END,
           CASE WHEN d.grouped IS NOT NULL THEN d.due END, d.grouped, pg_catalog.statement_timestamp(), w.max_attempts, w.priority, w.namespace, w.queue, w.name,
           w.payload::pg_catalog.json,
           CASE WHEN w.ttl OPERATOR(pg_catalog.>) 0
                THEN d.due OPERATOR(pg_catalog.+) (w.ttl OPERATOR(pg_catalog.*) interval '1 microsecond') END,
           CASE WHEN w.headers OPERATOR(pg_catalog.<>) '' THEN w.headers::pg_catalog.jsonb END
      FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]), pg_catalog.unnest($2::pg_catalog.text[]),
                      pg_catalog.unnest($3::pg_catalog.text[]), pg_catalog.unnest($4::pg_catalog.text[]),
                      pg_catalog.unnest($5::pg_catalog.int8[]), pg_catalog.unnest($6::pg_catalog.int8[]),
                      pg_catalog.unnest($7::pg_catalog.int8[]), pg_catalog.unnest($8::pg_catalog.int8[]),
                      pg_catalog.unnest($10::pg_catalog.int8[]), pg_catalog.unnest($11::pg_catalog.text[]),
                      pg_catalog.unnest($12::pg_catalog.text[]))
        AS w (namespace, queue, name, payload, priority, at, delay, max_attempts, ttl, group_key, headers)
     CROSS JOIN LATERAL (
           SELECT greatest(timestamp with time zone 'epoch'
                               OPERATOR(pg_catalog.+) (w.at OPERATOR(pg_catalog.*) interval '1 microsecond'),
                           pg_catalog.statement_timestamp())
                      OPERATOR(pg_catalog.+) (w.delay OPERATOR(pg_catalog.*) interval '1 microsecond') AS due,
                  CASE WHEN w.group_key OPERATOR(pg_catalog.<>) '' THEN w.group_key END AS grouped) AS d
    RETURNING id
)
SELECT pg_catalog.array_agg(p.id) AS ids,
       (SELECT pg_catalog.count(pg_catalog.pg_notify('lockapi', t.topic::pg_catalog.text))
          FROM pg_catalog.unnest($9::pg_catalog.int8[]) AS t (topic)) AS told
  FROM pushed AS p
