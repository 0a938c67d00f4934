-- Returns whether the server accepts writes.
--
-- Promises: false on a hot standby, and on a server that an administrator made read-only as a whole. What a
-- role or a database has as its default does not count.
-- Index: none. Race: none; a connection to a server that became a standby ends.
SELECT NOT pg_catalog.pg_is_in_recovery()
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_settings AS s
                    WHERE s.name OPERATOR(pg_catalog.=) 'default_transaction_read_only'
                      AND s.setting OPERATOR(pg_catalog.=) 'on'
                      AND s.source OPERATOR(pg_catalog.=) ANY (ARRAY['configuration file', 'command line'])) AS writes
