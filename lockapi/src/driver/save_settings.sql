-- Reads the settings that a session itself has changed, so that they can be restored, and its process.
--
-- Promises: all settings that were set in the session. Settings that come from the server, the database or
-- the role are not included, nor are those that last for a transaction only.
-- Index: none. Race: none. Operators are schema-qualified, because search_path is that of the program.
SELECT coalesce(pg_catalog.array_agg(s.name), '{}') AS names,
       coalesce(pg_catalog.array_agg(s.setting), '{}') AS settings,
       pg_catalog.pg_backend_pid()::pg_catalog.int8 AS process
  FROM pg_catalog.pg_settings AS s
 WHERE s.context OPERATOR(pg_catalog.=) 'user' AND s.source OPERATOR(pg_catalog.=) 'session'
   AND s.name OPERATOR(pg_catalog.<>) ALL (
       ARRAY['transaction_isolation', 'transaction_read_only', 'transaction_deferrable']::pg_catalog.text[])
