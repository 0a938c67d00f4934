-- Sets lock_timeout and statement_timeout for the transaction, marks it with $3, and returns the previous
-- timeouts.
--
-- Promises: the settings are changed together, for this transaction at most.
-- Index: none. Race: none; "old" is read before "new" is set because "new" reads from it.
WITH old AS MATERIALIZED (
    SELECT pg_catalog.current_setting('lock_timeout') AS lock,
           pg_catalog.current_setting('statement_timeout') AS statement
), new AS MATERIALIZED (
    SELECT old.lock, old.statement,
           pg_catalog.set_config('lock_timeout', $1::pg_catalog.text, true),
           pg_catalog.set_config('statement_timeout', $2::pg_catalog.text, true),
           pg_catalog.set_config('lockapi.marker', $3::pg_catalog.text, true)
      FROM old
)
SELECT new.lock, new.statement FROM new
