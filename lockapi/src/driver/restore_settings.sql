-- Restores the settings of a session to $1 and $2, and releases its advisory locks.
--
-- Promises: afterwards the session holds no advisory lock; the settings in $1 have the values in $2, and all
-- others have their defaults again. Returns how many settings were changed. No row, and nothing done, where
-- the process is not $3: a pooler that began to share sessions has sent the statement to another's.
-- Index: none. Race: none, nobody else uses the session.
WITH differing AS MATERIALIZED (
    SELECT s.name, f.value
      FROM pg_catalog.pg_settings AS s
      LEFT JOIN ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]), pg_catalog.unnest($2::pg_catalog.text[]))
             AS f (name, value) ON f.name OPERATOR(pg_catalog.=) s.name
     WHERE s.context OPERATOR(pg_catalog.=) 'user' AND s.source OPERATOR(pg_catalog.=) 'session'
       AND s.name OPERATOR(pg_catalog.<>) ALL (
           ARRAY['transaction_isolation', 'transaction_read_only', 'transaction_deferrable']::pg_catalog.text[])
       AND (f.value IS NULL OR s.setting OPERATOR(pg_catalog.<>) f.value)
       AND pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) $3::pg_catalog.int8
), done AS MATERIALIZED (
    -- A setting without a value is reset.
    SELECT pg_catalog.set_config(d.name, d.value, false) AS value, 1 AS one
      FROM differing AS d
), released AS MATERIALIZED (
    -- pg_settings does not show the mark of a session.
    SELECT pg_catalog.pg_advisory_unlock_all()::pg_catalog.text AS value,
           pg_catalog.set_config('lockapi.session', '', false) AS mark
     WHERE pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) $3::pg_catalog.int8
)
SELECT pg_catalog.count(d.one) AS settings
  FROM released AS r LEFT JOIN done AS d ON true
 GROUP BY r.value, r.mark
