-- Releases leases that were acquired but never reported to their caller, or reported too late.
--
-- Promises: only rows with the number of the acquisition are released, and none with the token that was
-- reported to its caller. They are free at once, even with a minimum hold, because nobody has worked under
-- them; later in an epoch in which they were not acquired, as release.sql says.
-- Index: the primary keys of lease, one range for each request, and of epoch.
-- Race: an acquisition that is still running on the server is not visible: retry until it cannot be running
-- any more.
WITH want AS MATERIALIZED (
    SELECT w.*
      FROM unnest($1::text[], $2::text[], $3::int8[], $4::int8[], $5::int8[], $6::int8[])
           WITH ORDINALITY AS w (namespace, key, first, last, acquisition, granted, n)
     ORDER BY w.namespace, w.key, w.first
), found AS MATERIALIZED (
    SELECT w.n, l.namespace, l.key, l.slot
      FROM want AS w
     CROSS JOIN LATERAL (
           SELECT l.namespace, l.key, l.slot
             FROM lockapi.lease AS l
            WHERE l.namespace = w.namespace AND l.key = w.key AND l.slot BETWEEN w.first AND w.last
              AND l.acquisition = w.acquisition AND l.fence <> w.granted
              AND l.released_at IS NULL AND l.expires_at > pg_catalog.clock_timestamp()
            ORDER BY l.slot
              FOR UPDATE OF l) AS l
), freed AS (
    UPDATE lockapi.lease AS l
       SET released_at = CASE WHEN l.renewed_at > (SELECT e.begun_at FROM lockapi.epoch AS e WHERE e.one)
                              THEN pg_catalog.clock_timestamp()
                              ELSE (SELECT e.begun_at FROM lockapi.epoch AS e WHERE e.one) END,
           held_until = NULL,
           expires_at = pg_catalog.clock_timestamp()
      FROM found AS f
     WHERE l.namespace = f.namespace AND l.key = f.key AND l.slot = f.slot
       AND l.namespace = ($1::text[])[1] AND l.key = ANY ($2::text[])
    RETURNING f.n
)
SELECT w.n, EXISTS (SELECT FROM freed AS f WHERE f.n = w.n) AS found
  FROM want AS w
