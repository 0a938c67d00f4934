-- Puts what a session has set back to $1 and $2, and releases its advisory locks.
--
-- Promises: afterwards the session holds no advisory lock; what was set in it has those values, and
-- everything else has its default again; answers how many settings were changed.
-- Index: none. Race: none, nobody else uses the session.
WITH differing AS MATERIALIZED (
    SELECT s.name, f.value
      FROM pg_catalog.pg_settings AS s
      LEFT JOIN ROWS FROM (unnest($1::text[]), unnest($2::text[])) AS f (name, value) ON f.name = s.name
     WHERE s.context = 'user' AND s.source = 'session'
       AND s.name NOT IN ('transaction_isolation', 'transaction_read_only', 'transaction_deferrable')
       AND s.setting IS DISTINCT FROM f.value
), done AS MATERIALIZED (
    -- Without a value it is reset.
    SELECT pg_catalog.set_config(d.name, d.value, false) AS value, 1 AS one
      FROM differing AS d
), released AS MATERIALIZED (
    SELECT pg_catalog.pg_advisory_unlock_all()::text AS value
)
SELECT pg_catalog.count(d.one) AS settings
  FROM released AS r LEFT JOIN done AS d ON true
 GROUP BY r.value
