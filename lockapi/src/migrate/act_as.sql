-- Acts as a role for the rest of the transaction.
--
-- Promises: what is created belongs to that role, and not to its member who happens to migrate.
-- Index: none. Race: none; schema_state.sql returns that role, and is run again afterwards and under the lock.
SELECT pg_catalog.set_config('role', $1::pg_catalog.text, true) AS role
