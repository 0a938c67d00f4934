-- Allocates blocks of consecutive ids.
--
-- Promises: no id is allocated twice. The ids of a name start at 1 and have no gaps, except ids that a process has
-- allocated and not used, and ids that are skipped in an epoch that is not the first: 2^24 for each second between
-- the beginning of the epoch in which ids of the name were last allocated and that of this one, because some may have
-- been allocated without the server's knowledge. NULL if the numbers are exhausted. A request that is repeated
-- allocates another block.
-- Index: the primary keys of id_block and epoch; no indexed column changes, so the update is HOT.
-- Race: requests of two processes conflict at the row, which ON CONFLICT DO UPDATE reads when it has the
-- lock. Requests of a batch are added up first; rows are locked in the order of the key.
WITH want AS MATERIALIZED (
    SELECT w.*,
           (pg_catalog.sum(w.size) OVER (PARTITION BY w.namespace, w.name ORDER BY w.n))::int8 AS upto
      FROM unnest($1::text[], $2::text[], $3::int8[])
           WITH ORDINALITY AS w (namespace, name, size, n)
), total AS MATERIALIZED (
    SELECT w.namespace, w.name, pg_catalog.max(w.upto) AS size
      FROM want AS w
     GROUP BY w.namespace, w.name
), epoch AS MATERIALIZED (
    SELECT e.number, e.first FROM lockapi.epoch AS e WHERE e.one
), grown AS (
    INSERT INTO lockapi.id_block AS b (namespace, name, next, epoch)
    SELECT t.namespace, t.name, t.size + 1 + ((e.number - e.first) << 24), e.number
      FROM total AS t
     CROSS JOIN epoch AS e
     ORDER BY t.namespace, t.name
    ON CONFLICT (namespace, name) DO UPDATE
       SET next = b.next + excluded.next - 1 - (least(greatest(b.epoch - (SELECT e.first FROM epoch AS e), 0),
                                                          (SELECT e.number - e.first FROM epoch AS e)) << 24),
           epoch = greatest(b.epoch, excluded.epoch)
     WHERE b.next <= 9223372036854775807 - excluded.next
    RETURNING b.namespace, b.name, b.next
)
SELECT w.n, g.next - t.size + w.upto - w.size AS first
  FROM want AS w
  JOIN total AS t ON t.namespace = w.namespace AND t.name = w.name
  LEFT JOIN grown AS g ON g.namespace = w.namespace AND g.name = w.name
