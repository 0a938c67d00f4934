-- Renews worker numbers, and moves the floors below which their owners make ids.
--
-- Promises: only the claim with this token is renewed, even after its end, as long as the number has no other owner;
-- but not after an end in an earlier epoch, in which another owner may have taken it without the server's knowledge.
-- A floor never decreases. It is the reserve ahead of the clock, or a second ahead of an owner that runs ahead of it;
-- see claim.sql. No row is inserted.
-- Index: the primary keys of id_worker and epoch; no indexed column changes, so the update is HOT.
-- Race: a claim that locked the row first has changed the token; the predicate sees this when it is evaluated
-- again on the new row version. Claims never wait for rows, so a batch cannot deadlock with one.
WITH want AS MATERIALIZED (
    SELECT w.*
      FROM unnest($1::text[], $2::text[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int8[])
           WITH ORDINALITY AS w (namespace, name, worker, token, ttl, reserve, least, n)
), clock AS MATERIALIZED (
    SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::int8 AS us
), renewed AS (
    UPDATE lockapi.id_worker AS l
       SET floor = greatest(l.floor, c.us / 1000 + w.reserve, w.least + least(w.reserve, 1000)),
           renewed_at = pg_catalog.clock_timestamp(),
           expires_at = pg_catalog.clock_timestamp() + w.ttl * interval '1 microsecond'
      FROM want AS w, clock AS c
     WHERE l.namespace = w.namespace AND l.name = w.name AND l.worker = w.worker AND l.token = w.token
       AND l.namespace = ANY (ARRAY(SELECT x.namespace FROM want AS x))
       AND l.name = ANY (ARRAY(SELECT x.name FROM want AS x))
       AND l.worker = ANY (ARRAY(SELECT x.worker FROM want AS x))
       AND (l.expires_at > pg_catalog.clock_timestamp()
            OR l.renewed_at >= (SELECT e.begun_at FROM lockapi.epoch AS e WHERE e.one))
    RETURNING w.n, l.floor
)
SELECT w.n, r.floor, c.us AS now
  FROM want AS w
 CROSS JOIN clock AS c
  LEFT JOIN renewed AS r ON r.n = w.n
