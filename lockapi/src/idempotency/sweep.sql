-- Deletes answers whose time is over, among the $3 rows that follow the key $1, $2.
--
-- Promises: no answer changes, because an expired answer counts as none. Returns how many rows were deleted, how many
-- were examined, and the key of the last examined row.
-- Index: the primary key of answer, for at most $3 rows.
-- Race: a row that was recorded anew meanwhile is checked again when it is locked; a locked row is skipped until the
-- next sweep.
WITH part AS MATERIALIZED (
    SELECT a.namespace, a.key, a.keep_until
      FROM lockapi.answer AS a
     WHERE (a.key, a.namespace) > ($2::text, $1::text)
     ORDER BY a.key, a.namespace
     LIMIT $3::int8
), old AS MATERIALIZED (
    SELECT o.at
      FROM part AS p
     CROSS JOIN LATERAL (
           SELECT a.ctid AS at
             FROM lockapi.answer AS a
            WHERE a.namespace = p.namespace AND a.key = p.key
              AND a.keep_until <= pg_catalog.statement_timestamp()
              FOR UPDATE OF a SKIP LOCKED) AS o
     WHERE p.keep_until <= pg_catalog.statement_timestamp()
), gone AS (
    DELETE FROM lockapi.answer AS a
     WHERE a.ctid = ANY (ARRAY(SELECT o.at FROM old AS o))
    RETURNING 1
)
SELECT (SELECT pg_catalog.count(*) FROM gone) AS deleted,
       (SELECT pg_catalog.count(*) FROM part) AS seen,
       p.namespace::text, p.key::text
  FROM (SELECT) AS one
  LEFT JOIN LATERAL (
       SELECT p.namespace, p.key FROM part AS p
        ORDER BY p.key DESC, p.namespace DESC LIMIT 1) AS p ON true
