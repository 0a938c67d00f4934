-- Leaves a marker in the session ($1), or reads the marker that is there ($1 empty).
--
-- Promises: on a connection of its own the marker is read back there and nowhere else; behind a
-- transaction-pooling proxy it turns up elsewhere, or is gone.
-- Index: none. Race: none.
SELECT CASE WHEN $1::text = ''
            THEN coalesce(pg_catalog.current_setting('lockapi.marker', true), '')
            ELSE pg_catalog.set_config('lockapi.marker', $1::text, false) END AS marker
