-- Records answers; of several for one key in the batch, the first takes effect.
--
-- Promises: a key has one answer until its time is over. A request that is repeated with the same token changes its own
-- answer. Returns whether the answer is that of the request.
-- Index: the primary key of answer.
-- Race: two that record for one key conflict at ON CONFLICT, where the second waits for the first to commit and is
-- evaluated on its row. Rows are written in the order of their keys.
WITH asked AS MATERIALIZED (
    SELECT w.*
      FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]), pg_catalog.unnest($2::pg_catalog.text[]),
                      pg_catalog.unnest($3::pg_catalog.int8[]), pg_catalog.unnest($4::pg_catalog.text[]),
                      pg_catalog.unnest($5::pg_catalog.text[]), pg_catalog.unnest($6::pg_catalog.int8[]))
           WITH ORDINALITY AS w (namespace, key, fence, fingerprint, answer, retention, n)
), want AS MATERIALIZED (
    SELECT DISTINCT ON (a.key COLLATE pg_catalog."C", a.namespace COLLATE pg_catalog."C") a.*
      FROM asked AS a
     ORDER BY a.key COLLATE pg_catalog."C", a.namespace COLLATE pg_catalog."C", a.n
), recorded AS (
    INSERT INTO lockapi.answer AS a (namespace, key, fence, fingerprint, answer, answered_at, keep_until)
    SELECT w.namespace, w.key, w.fence, pg_catalog.decode(w.fingerprint, 'hex'), pg_catalog.decode(w.answer, 'hex'),
           pg_catalog.clock_timestamp(),
           pg_catalog.clock_timestamp()
               OPERATOR(pg_catalog.+) (w.retention OPERATOR(pg_catalog.*) interval '1 microsecond')
      FROM want AS w
     ORDER BY w.key COLLATE pg_catalog."C", w.namespace COLLATE pg_catalog."C"
    ON CONFLICT (key, namespace) DO UPDATE
       SET fence = excluded.fence, fingerprint = excluded.fingerprint, answer = excluded.answer,
           answered_at = excluded.answered_at, keep_until = excluded.keep_until
     WHERE a.keep_until OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()
        OR a.fence OPERATOR(pg_catalog.=) excluded.fence
    RETURNING a.namespace, a.key, a.fence
)
SELECT a.n, r.fence IS NOT NULL AS recorded
  FROM asked AS a
  LEFT JOIN recorded AS r ON r.key OPERATOR(pg_catalog.=) a.key AND r.namespace OPERATOR(pg_catalog.=) a.namespace
                         AND r.fence OPERATOR(pg_catalog.=) a.fence
