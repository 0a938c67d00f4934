-- Waits until no other transaction applies migrations.
--
-- Promises: one at a time until the transaction ends, whether the schema exists yet or not. The
-- key is lockapi.advisory_key('lockapi', repeat('#', 256) || 'migrate'), which no name of a mutex has.
-- Index: none. Race: this prevents the race of several first users.
SELECT pg_catalog.pg_advisory_xact_lock($1::pg_catalog.int8)::pg_catalog.text AS done
