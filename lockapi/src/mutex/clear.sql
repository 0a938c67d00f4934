-- Releases every advisory lock of this session but the one that marks the session itself.
--
-- Promises: afterwards the session holds nothing but the mark ($1); false when somebody who looked
-- whether the session lives has it in that moment.
-- Index: none. Race: none, only the session itself takes locks for the session.
SELECT pg_catalog.pg_advisory_unlock_all()::text IS NOT NULL
   AND pg_catalog.pg_try_advisory_lock($1::int8) AS marked
