-- Terminates this session, so that nobody can use it again.
SELECT pg_catalog.pg_terminate_backend(pg_catalog.pg_backend_pid())
