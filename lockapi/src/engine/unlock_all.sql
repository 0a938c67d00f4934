-- Releases the locks of the session.
--
-- Promises: they are free when it is answered, before the session has ended.
-- Index: none. Race: none.
SELECT pg_catalog.pg_advisory_unlock_all()
