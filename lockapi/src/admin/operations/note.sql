-- Records which locks a program holds and waits for, and the names of these locks.
--
-- Promises: the names $4/$5, the sessions with the marks $6, and the holds or waits $7 to $11 of the backend
-- $1 exist afterwards; those that $12 to $14 name do not. With $15, all other notes of the backend are
-- deleted as well.
-- Index: the primary keys.
-- Race: two programs that record one name conflict at its row, and process the names in the same order.
-- Sessions and notes belong to one backend, which sends one of these statements at a time; a backend does not
-- record and remove the same note in one statement.
WITH names AS (
    INSERT INTO lockapi.lock_name AS n (lock_key, namespace, name)
    SELECT DISTINCT ON (w.lock_key) w.lock_key, $2::text, w.name
      FROM unnest($4::int8[], $5::text[]) AS w (lock_key, name)
     ORDER BY w.lock_key
    ON CONFLICT (lock_key) DO UPDATE SET seen_at = pg_catalog.clock_timestamp()
     WHERE n.seen_at < pg_catalog.clock_timestamp() - interval '1 hour'
    RETURNING 1
), sessions AS (
    INSERT INTO lockapi.lock_session (mark, backend, namespace, owner)
    SELECT w.mark, $1::int8, $2::text, $3::text
      FROM unnest($6::int8[]) AS w (mark)
    ON CONFLICT DO NOTHING
    RETURNING 1
), ended AS (
    DELETE FROM lockapi.lock_note AS o
     WHERE o.backend = $1::int8
       AND ((o.lock_key, o.pair, o.waits) IN (SELECT e.lock_key, e.pair, e.waits
                                                FROM unnest($12::int8[], $13::bool[], $14::bool[]) AS e (lock_key, pair, waits))
            OR ($15::bool AND (o.lock_key, o.pair, o.waits) NOT IN (SELECT w.lock_key, w.pair, w.waits
                                                FROM unnest($7::int8[], $8::bool[], $9::bool[]) AS w (lock_key, pair, waits))))
    RETURNING 1
), noted AS (
    INSERT INTO lockapi.lock_note AS o (backend, lock_key, pair, waits, fence, since)
    SELECT $1::int8, w.lock_key, w.pair, w.waits, nullif(w.fence, 0),
           pg_catalog.clock_timestamp() - w.age * interval '1 microsecond'
      FROM unnest($7::int8[], $8::bool[], $9::bool[], $10::int8[], $11::int8[]) AS w (lock_key, pair, waits, fence, age)
    ON CONFLICT (backend, lock_key, pair, waits) DO UPDATE SET fence = excluded.fence, since = excluded.since
    RETURNING 1
)
SELECT (SELECT pg_catalog.count(*) FROM names) + (SELECT pg_catalog.count(*) FROM sessions)
     + (SELECT pg_catalog.count(*) FROM ended) + (SELECT pg_catalog.count(*) FROM noted) AS rows
