-- Stores what a program has counted since it last did, under the number $3 that it drew for that.
--
-- Promises: stored once, however often it is sent: what is there already stays as it is. Stores nothing more than four minutes
-- after the server's time $2, when the program took it out of its memory, and returns whether it was in time: parts are moved away five
-- minutes after they were written at the earliest, so a late repetition cannot store them again.
-- Index: job_history_part_pkey.
-- Race: of two that store the same at the same time the second waits for the first. Nobody else has rows with this number, so
-- nothing else waits, and no two programs do for each other.
WITH late AS MATERIALIZED (
    SELECT pg_catalog.clock_timestamp() >= timestamptz 'epoch' + ($2::int8 + 240000000) * interval '1 microsecond' AS late
), stored AS (
    INSERT INTO lockapi.job_history_part (namespace, queue, minute, name, part, written_at,
                                          completed, failed, dead, waited, ran, waits, runs)
    SELECT $1::text, p.queue, timestamptz 'epoch' + p.minute * interval '1 microsecond', p.name, $3::int8,
           pg_catalog.clock_timestamp(), p.completed, p.failed, p.dead, p.waited, p.ran, p.waits::int8[], p.runs::int8[]
      FROM unnest($4::text[], $5::int8[], $6::text[], $7::int8[], $8::int8[], $9::int8[], $10::int8[], $11::int8[],
                  $12::text[], $13::text[])
           AS p (queue, minute, name, completed, failed, dead, waited, ran, waits, runs)
     WHERE NOT (SELECT l.late FROM late AS l)
        ON CONFLICT (namespace, queue, minute, name, part) DO NOTHING
)
SELECT NOT l.late AS in_time FROM late AS l
