-- Claims worker numbers; of several requests for one name in the batch, each gets its own.
--
-- Promises: a number has at most one owner at a time, decided by the server's clock on the locked row. The owner
-- starts at or after the floor that the former owner stored, and its own floor is stored before it makes an id. In an
-- epoch that is not the first, it also starts after the beginning of the epoch by its lead, 90 s or more, because
-- floors may be lost: a floor is at most a minute in the future, or at most a second beyond the time of its owner, if
-- the owner runs ahead of the clock. A number that was last renewed before the epoch began may have had another,
-- unknown owner since then: the next owner starts later by the time that has passed and by the lead. The number that
-- has been free for longest is claimed first. All numbers of a name have one layout, and none is given before its
-- epoch. A request that is repeated gets the number that its token has, if that has not expired, and starts where it
-- would have started at first, or later by the reserve at most. Only if the first is executed after the second was
-- sent may it take another number, which then expires. A released number is free whatever the clock shows. If a
-- number was renewed at a time in the future, because the clock was set back, it stays valid from now on for as long
-- as it was to stay valid from that time.
-- Index: the primary keys of id_space, id_worker and epoch; of id_worker all rows of a name are read.
-- Race: two claims of a number conflict at FOR UPDATE, where the second skips the row; two that create a new
-- number or name conflict at ON CONFLICT DO NOTHING, in the order of the keys, and the second has to be
-- retried. The floor is read from the locked row.
WITH want AS MATERIALIZED (
    SELECT w.*
      FROM unnest($1::text[], $2::text[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int8[],
                  $8::int8[], $9::int8[], $10::text[])
           WITH ORDINALITY AS w (namespace, name, worker_bits, sequence_bits, epoch, token, ttl,
                                 reserve, least, owner, n)
), clock AS MATERIALIZED (
    SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::int8 AS us,
           (SELECT (extract(epoch FROM e.begun_at) * 1000)::int8 + e.id_lead
              FROM lockapi.epoch AS e WHERE e.one) AS least,
           (SELECT e.begun_at FROM lockapi.epoch AS e WHERE e.one) AS begun_at,
           (SELECT e.id_lead FROM lockapi.epoch AS e WHERE e.one) AS lead
), created AS (
    INSERT INTO lockapi.id_space AS s (namespace, name, worker_bits, sequence_bits, epoch)
    SELECT DISTINCT ON (w.namespace, w.name) w.namespace, w.name, w.worker_bits, w.sequence_bits, w.epoch
      FROM want AS w, clock AS c
     WHERE w.epoch * 1000 <= c.us
     ORDER BY w.namespace, w.name, w.n
    ON CONFLICT DO NOTHING
    RETURNING s.namespace, s.name, s.worker_bits, s.sequence_bits, s.epoch
), space AS MATERIALIZED (
    SELECT * FROM created
    UNION ALL
    SELECT s.namespace, s.name, s.worker_bits, s.sequence_bits, s.epoch
      FROM (SELECT DISTINCT w.namespace, w.name FROM want AS w) AS w
      JOIN lockapi.id_space AS s ON s.namespace = w.namespace AND s.name = w.name
                                AND s.namespace = ANY (ARRAY(SELECT x.namespace FROM want AS x))
                                AND s.name = ANY (ARRAY(SELECT x.name FROM want AS x))
), able AS MATERIALIZED (
    SELECT w.*
      FROM want AS w
      JOIN space AS s ON s.namespace = w.namespace AND s.name = w.name
       AND s.worker_bits = w.worker_bits AND s.sequence_bits = w.sequence_bits AND s.epoch = w.epoch
     CROSS JOIN clock AS c
     WHERE w.epoch * 1000 <= c.us
), own AS MATERIALIZED (
    SELECT a.*, o.worker
      FROM able AS a
     CROSS JOIN LATERAL (
            SELECT l.worker
              FROM lockapi.id_worker AS l
             WHERE l.namespace = a.namespace AND l.name = a.name AND l.token = a.token
               AND l.expires_at > pg_catalog.clock_timestamp()
             ORDER BY l.worker
             LIMIT 1
               FOR UPDATE OF l SKIP LOCKED
           ) AS o
), again AS (
    UPDATE lockapi.id_worker AS l
       SET floor = greatest(l.floor, c.us / 1000 + o.reserve, o.least + least(o.reserve, 1000)),
           renewed_at = pg_catalog.clock_timestamp(),
           expires_at = pg_catalog.clock_timestamp() + o.ttl * interval '1 microsecond'
      FROM own AS o, clock AS c
     WHERE l.namespace = o.namespace AND l.name = o.name AND l.worker = o.worker
       AND l.namespace = ANY (ARRAY(SELECT x.namespace FROM own AS x))
       AND l.name = ANY (ARRAY(SELECT x.name FROM own AS x))
       AND l.worker = ANY (ARRAY(SELECT x.worker FROM own AS x))
    RETURNING o.n, l.worker, l.floor, l.floor - least(o.reserve, 1000) AS start
), fit AS MATERIALIZED (
    SELECT a.*, pg_catalog.row_number() OVER (PARTITION BY a.namespace, a.name ORDER BY a.n) AS nth
      FROM able AS a
     WHERE a.n <> ALL (ARRAY(SELECT o.n FROM own AS o))
), asked AS MATERIALIZED (
    SELECT f.namespace, f.name, f.worker_bits, pg_catalog.count(*) AS many
      FROM fit AS f
     GROUP BY f.namespace, f.name, f.worker_bits
), free AS MATERIALIZED (
    SELECT a.namespace, a.name, o.worker, o.expires_at, o.renewed_at, o.floor
      FROM asked AS a
     CROSS JOIN LATERAL (
            SELECT l.worker, l.expires_at, l.renewed_at, l.floor
              FROM lockapi.id_worker AS l
             WHERE l.namespace = a.namespace AND l.name = a.name
               AND (l.token = 0 OR l.expires_at <= pg_catalog.clock_timestamp())
               AND l.token <> ALL (ARRAY(SELECT o.token FROM own AS o))
             ORDER BY l.expires_at, l.worker
             LIMIT a.many
               FOR UPDATE OF l SKIP LOCKED
           ) AS o
), ahead AS MATERIALIZED (
    SELECT o.place
      FROM asked AS a
     CROSS JOIN LATERAL (
            SELECT l.ctid AS place
              FROM lockapi.id_worker AS l
             WHERE l.namespace = a.namespace AND l.name = a.name AND l.token <> 0
               AND l.renewed_at > pg_catalog.clock_timestamp()
               AND l.token <> ALL (ARRAY(SELECT w.token FROM want AS w))
               FOR UPDATE OF l SKIP LOCKED
           ) AS o
), moved AS (
    UPDATE lockapi.id_worker AS l
       SET expires_at = l.expires_at - (l.renewed_at - pg_catalog.clock_timestamp()),
           claimed_at = least(l.claimed_at, pg_catalog.clock_timestamp()),
           renewed_at = pg_catalog.clock_timestamp()
     WHERE l.ctid = ANY (ARRAY(SELECT h.place FROM ahead AS h))
), picked AS MATERIALIZED (
    SELECT f.namespace, f.name, f.worker,
           f.floor + CASE WHEN f.renewed_at < c.begun_at
                          THEN (extract(epoch FROM c.begun_at - f.renewed_at) * 1000000)::int8 / 1000 + c.lead
                          ELSE 0 END AS floor,
           pg_catalog.row_number() OVER (PARTITION BY f.namespace, f.name ORDER BY f.expires_at, f.worker) AS nth
      FROM free AS f
     CROSS JOIN clock AS c
), taken AS (
    UPDATE lockapi.id_worker AS l
       SET token = f.token,
           owner = f.owner,
           floor = greatest(c.us / 1000 + f.reserve,
                            greatest(p.floor, f.least, c.us / 1000, c.least) + least(f.reserve, 1000)),
           claimed_at = pg_catalog.clock_timestamp(),
           renewed_at = pg_catalog.clock_timestamp(),
           expires_at = pg_catalog.clock_timestamp() + f.ttl * interval '1 microsecond'
      FROM picked AS p
      JOIN fit AS f ON f.namespace = p.namespace AND f.name = p.name AND f.nth = p.nth
     CROSS JOIN clock AS c
     WHERE l.namespace = p.namespace AND l.name = p.name AND l.worker = p.worker
       AND l.namespace = ANY (ARRAY(SELECT x.namespace FROM picked AS x))
       AND l.name = ANY (ARRAY(SELECT x.name FROM picked AS x))
       AND l.worker = ANY (ARRAY(SELECT x.worker FROM picked AS x))
    RETURNING f.n, l.worker, l.floor, greatest(p.floor, f.least, c.us / 1000, c.least) AS start
), next AS MATERIALIZED (
    SELECT a.namespace, a.name,
           (SELECT coalesce(pg_catalog.max(l.worker) + 1, 0)
              FROM lockapi.id_worker AS l
             WHERE l.namespace = a.namespace AND l.name = a.name) AS worker,
           (SELECT pg_catalog.count(*)
              FROM free AS f
             WHERE f.namespace = a.namespace AND f.name = a.name) AS picked
      FROM asked AS a
), new AS MATERIALIZED (
    SELECT f.*, x.worker + f.nth - x.picked - 1 AS worker
      FROM fit AS f
      JOIN next AS x ON x.namespace = f.namespace AND x.name = f.name
     WHERE f.nth > x.picked
), added AS (
    INSERT INTO lockapi.id_worker AS l (namespace, name, worker, token, floor, owner,
                                        claimed_at, renewed_at, expires_at)
    SELECT w.namespace, w.name, w.worker, w.token,
           greatest(c.us / 1000 + w.reserve, greatest(w.least, c.us / 1000, c.least) + least(w.reserve, 1000)), w.owner,
           pg_catalog.clock_timestamp(), pg_catalog.clock_timestamp(),
           pg_catalog.clock_timestamp() + w.ttl * interval '1 microsecond'
      FROM new AS w, clock AS c
     WHERE w.worker < 1::int8 << w.worker_bits::int4
     ORDER BY w.namespace, w.name, w.worker
    ON CONFLICT DO NOTHING
    RETURNING l.namespace, l.name, l.worker, l.floor
)
SELECT w.n,
       coalesce(g.worker, t.worker, a.worker) AS worker,
       CASE WHEN a.worker IS NULL THEN coalesce(g.start, t.start)
            ELSE greatest(w.least, c.us / 1000, c.least) END AS start,
       c.us AS now,
       coalesce(x.worker >= 1::int8 << x.worker_bits::int4, false) AS is_full,
       s.worker_bits, s.sequence_bits, s.epoch,
       coalesce(g.floor, t.floor, a.floor) AS floor
  FROM want AS w
 CROSS JOIN clock AS c
  LEFT JOIN space AS s ON s.namespace = w.namespace AND s.name = w.name
  LEFT JOIN new AS x ON x.n = w.n
  LEFT JOIN again AS g ON g.n = w.n
  LEFT JOIN taken AS t ON t.n = w.n
  LEFT JOIN added AS a ON a.namespace = x.namespace AND a.name = x.name AND a.worker = x.worker
