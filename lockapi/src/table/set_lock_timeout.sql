-- Sets lock_timeout for the open transaction, marks it with $2, and returns the previous value.
--
-- Promises: the setting lasts for this transaction at most.
-- Index: none. Race: none; "old" is read before "new" is set because "new" reads from it.
WITH old AS MATERIALIZED (
    SELECT pg_catalog.current_setting('lock_timeout') AS lock
), new AS MATERIALIZED (
    SELECT old.lock, pg_catalog.set_config('lock_timeout', $1::pg_catalog.text, true),
           pg_catalog.set_config('lockapi.marker', $2::pg_catalog.text, true)
      FROM old
)
SELECT new.lock FROM new
