-- Migrations of lockapi, to be run as the owner of the schema.
--
-- Promises: all of it or nothing. Index: none.
-- Race: one transaction at a time applies migrations; one that waited fails where it finds what it makes.
BEGIN;
{settle}
SELECT pg_catalog.pg_advisory_xact_lock({key});

{steps}
COMMIT;
