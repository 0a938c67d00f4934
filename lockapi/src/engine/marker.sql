-- Sets a marker in the session ($1), reads the marker that is there ($1 empty), or removes it ($1 a hyphen).
--
-- Promises: on a connection of its own the marker is read back there and nowhere else; behind a
-- transaction-pooling proxy it appears elsewhere, or is gone.
-- Index: none. Race: none.
SELECT CASE WHEN $1::pg_catalog.text OPERATOR(pg_catalog.=) ''
            THEN coalesce(pg_catalog.current_setting('lockapi.marker', true), '')
            WHEN $1::pg_catalog.text OPERATOR(pg_catalog.=) '-'
            THEN pg_catalog.set_config('lockapi.marker', '', false)
            ELSE pg_catalog.set_config('lockapi.marker', $1::pg_catalog.text, false) END AS marker
