-- Releases worker numbers.
--
-- Promises: only the claim with this token ends. Its successor starts at the time in the request, below which
-- all ids of the claim are, or at the floor if that is earlier. In an epoch in which it was not renewed it starts at the
-- floor: another may have had the number, and made later ids, without the server's knowledge.
-- Index: the primary keys of id_worker and epoch; no indexed column changes, so the update is HOT.
-- Race: as in renew.sql. The token is removed, so that a renewal that comes later finds nothing.
WITH want AS MATERIALIZED (
    SELECT w.*
      FROM unnest($1::text[], $2::text[], $3::int8[], $4::int8[], $5::int8[])
           WITH ORDINALITY AS w (namespace, name, worker, token, floor, n)
), released AS (
    UPDATE lockapi.id_worker AS l
       SET token = 0,
           floor = CASE WHEN l.renewed_at < (SELECT e.begun_at FROM lockapi.epoch AS e WHERE e.one)
                        THEN l.floor ELSE least(l.floor, w.floor) END,
           expires_at = least(l.expires_at, pg_catalog.clock_timestamp())
      FROM want AS w
     WHERE l.namespace = w.namespace AND l.name = w.name AND l.worker = w.worker AND l.token = w.token
       AND l.namespace = ANY (ARRAY(SELECT x.namespace FROM want AS x))
       AND l.name = ANY (ARRAY(SELECT x.name FROM want AS x))
       AND l.worker = ANY (ARRAY(SELECT x.worker FROM want AS x))
    RETURNING w.n
)
SELECT w.n, r.n IS NOT NULL AS released
  FROM want AS w
  LEFT JOIN released AS r ON r.n = w.n
