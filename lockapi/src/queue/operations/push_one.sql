-- Pushes one job without a key, a group, headers and a notification: the simple form of push.sql.
--
-- Promises: as push.sql. Index: none is read. Race: none.
INSERT INTO lockapi.job (run_at, created_at, max_attempts, priority, namespace, queue, name, payload, expires_at)
SELECT d.due, pg_catalog.statement_timestamp(), $8::pg_catalog.int8, $5::pg_catalog.int8, $1::pg_catalog.text, $2::pg_catalog.text,
       $3::pg_catalog.text, $4::pg_catalog.text::pg_catalog.json,
       CASE WHEN $9::pg_catalog.int8 OPERATOR(pg_catalog.>) 0
            THEN d.due OPERATOR(pg_catalog.+) ($9::pg_catalog.int8 OPERATOR(pg_catalog.*) interval '1 microsecond') END
  FROM (SELECT greatest(timestamp with time zone 'epoch'
                            OPERATOR(pg_catalog.+) ($6::pg_catalog.int8 OPERATOR(pg_catalog.*) interval '1 microsecond'),
                        pg_catalog.statement_timestamp())
                   OPERATOR(pg_catalog.+) ($7::pg_catalog.int8 OPERATOR(pg_catalog.*) interval '1 microsecond') AS due
        OFFSET 0) AS d
RETURNING ARRAY[id] AS ids, 0::pg_catalog.int8 AS told
