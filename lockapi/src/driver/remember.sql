-- Reads what a session itself has set, so that it can be put back.
--
-- Promises: all that was set in the session; what comes from the server, the database or the role is
-- left to them, and so is what lasts for a transaction only.
-- Index: none. Race: none. Operators are named in full, because search_path is that of the program.
SELECT coalesce(pg_catalog.array_agg(s.name), '{}') AS names,
       coalesce(pg_catalog.array_agg(s.setting), '{}') AS settings
  FROM pg_catalog.pg_settings AS s
 WHERE s.context OPERATOR(pg_catalog.=) 'user' AND s.source OPERATOR(pg_catalog.=) 'session'
   AND s.name OPERATOR(pg_catalog.<>) ALL (
       ARRAY['transaction_isolation', 'transaction_read_only', 'transaction_deferrable']::pg_catalog.text[])
