-- Releases every advisory lock of this session but the one that marks the session itself.
--
-- Promises: afterwards the session holds the mark ($1) and nothing else.
-- Index: none. Race: none, only the session itself takes locks for the session.
SELECT pg_catalog.pg_advisory_unlock_all()::text || pg_catalog.pg_try_advisory_lock($1::int8)::text AS done
