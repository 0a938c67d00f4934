-- Reads what a session's settings are, so that they can be put back.
--
-- Promises: all that a session may change itself; a transaction's own are left out.
-- Index: none. Race: none.
SELECT pg_catalog.array_agg(s.name) AS names, pg_catalog.array_agg(s.setting) AS settings
  FROM pg_catalog.pg_settings AS s
 WHERE s.context = 'user'
   AND s.name NOT IN ('transaction_isolation', 'transaction_read_only', 'transaction_deferrable')
