-- Puts the settings of a session back to $1 and $2, and releases its advisory locks.
--
-- Promises: afterwards the session holds no advisory lock and has the settings that were read;
-- answers how many of them differed.
-- Index: none. Race: none, nobody else uses the session.
WITH differing AS MATERIALIZED (
    SELECT f.name, f.value
      FROM ROWS FROM (unnest($1::text[]), unnest($2::text[])) AS f (name, value)
      JOIN pg_catalog.pg_settings AS s ON s.name = f.name
     WHERE s.setting IS DISTINCT FROM f.value
), done AS MATERIALIZED (
    SELECT pg_catalog.set_config(d.name, d.value, false) AS value
      FROM differing AS d
), released AS MATERIALIZED (
    SELECT pg_catalog.pg_advisory_unlock_all()::text AS value
)
SELECT pg_catalog.count(d.value) AS settings
  FROM released AS r LEFT JOIN done AS d ON true
 GROUP BY r.value
