-- Tokens after a crash, pushes that are acknowledged again, and the lock of admissions.
--
-- Sessions that hold mutexes do not wait for the disk, so a crash takes back up to 16,384 values of the sequence
-- of tokens, and up to 34 that the server logs ahead. They are left out when the first session enters its epoch
-- after the crash, and only then. An epoch has 2^21 tokens for each second until the next begins: if each session
-- that opens left them out, 128 in a second would use these up, and a standby that takes over would draw some of
-- them again. What else is drawn is one value for each acquisition, and no server has two million in a second.

SET LOCAL search_path = pg_catalog, pg_temp;

CREATE UNLOGGED TABLE lockapi.since_crash (
    one bool NOT NULL DEFAULT true PRIMARY KEY CHECK (one)
);

COMMENT ON TABLE lockapi.since_crash IS 'Has a row if tokens that the latest crash of the server took back were left out. It is not logged: a crash, or a promotion, removes the row.';
COMMENT ON COLUMN lockapi.since_crash.one IS 'There is one row at most.';

-- As before (see 0007_epoch.sql); once after each crash it leaves out the tokens that the crash took back, and it fails
-- where there are no numbers left.
CREATE OR REPLACE FUNCTION lockapi.enter_epoch() RETURNS int8
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
    DECLARE
        gap constant int8 := 32768;
        near constant int8 := 60;
        last constant int8 := 4294967294;
        own_system int8 := -1;
        own_timeline int8 := -1;
        own_place int8;
        known lockapi.epoch;
        former int8;
        seconds int8;
        missing bool;
    BEGIN
        own_place := ((SELECT d.oid::int8 FROM pg_database AS d WHERE d.datname = current_database()) << 32)
                     | 'lockapi.epoch'::regclass::oid::int8;
        -- Some managed servers speak the protocol and do not have these, or do not let others call them: each by itself,
        -- because the timeline alone shows a promotion.
        BEGIN
            own_system := (SELECT c.system_identifier FROM pg_control_system() AS c);
        EXCEPTION WHEN object_not_in_prerequisite_state OR feature_not_supported OR insufficient_privilege
                    OR undefined_function THEN
            NULL;
        END;
        BEGIN
            own_timeline := ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int8;
        EXCEPTION WHEN object_not_in_prerequisite_state OR feature_not_supported OR insufficient_privilege
                    OR undefined_function THEN
            NULL;
        END;
        SELECT e.* INTO known FROM lockapi.epoch AS e WHERE e.one;
        <<entered>>
        BEGIN
            IF known.system = own_system AND known.timeline = own_timeline AND known.place = own_place
               AND known.waits_from <= clock_timestamp() THEN
                EXIT entered;
            END IF;
            missing := NOT FOUND;
            -- pg_restore makes keys after it has read rows and set sequences, which would undo what is begun here.
            IF NOT EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = 'lockapi.epoch'::regclass AND i.indisprimary) THEN
                RAISE 'lockapi.epoch has no primary key: the schema is being restored'
                    USING ERRCODE = 'object_not_in_prerequisite_state';
            END IF;
            IF missing THEN
                -- It was deleted: what came before is not known, so this is not the first.
                INSERT INTO lockapi.epoch (number, first, system, timeline, place, begun_at, waits_from)
                VALUES (0, 0, -2, 0, 0, 'epoch', 'epoch') ON CONFLICT DO NOTHING;
            END IF;
            SELECT e.* INTO STRICT known FROM lockapi.epoch AS e WHERE e.one FOR UPDATE;
            IF known.system = own_system AND known.timeline = own_timeline AND known.place = own_place THEN
                IF known.waits_from > clock_timestamp() THEN
                    UPDATE lockapi.epoch AS e SET waits_from = clock_timestamp() WHERE e.one;
                END IF;
                EXIT entered;
            END IF;
            -- What was drawn in it knows it where the row does not.
            former := greatest(known.number, (SELECT f.last_value FROM lockapi.fence_seq AS f) >> 21,
                               (SELECT d.last_value FROM lockapi.delivery_seq AS d) >> 21,
                               (SELECT max(b.epoch) FROM lockapi.id_block AS b));
            seconds := extract(epoch FROM clock_timestamp() - timestamptz '2025-01-01 00:00:00+00')::int8;
            -- A clock that is a century ahead would use up the numbers there are.
            IF seconds NOT BETWEEN 1 AND 4000000000 THEN
                seconds := 1;
            END IF;
            -- Not far ahead after two in the same second: a server that has not heard of the second may be next.
            known.number := CASE WHEN seconds > former THEN seconds
                                 WHEN former - seconds < near THEN former + 1
                                 ELSE former + gap END;
            -- The last one whose tokens fit. Only a clock that was a century ahead gets there, for as long as it takes
            -- to put everything back.
            IF known.number > last THEN
                RAISE 'the epochs are used up: the clock of a server was ahead by a century; see "the epochs are used up" in docs/operating.md'
                    USING ERRCODE = 'feature_not_supported';
            END IF;
            -- Who makes ids in the earlier epoch is ahead of the clock by its lead, of which a 16th of the time that
            -- has passed is made up for, and has a second more. Promotions that follow each other faster add to it.
            known.id_lead := greatest(90000, known.id_lead + 2500
                - (greatest(extract(epoch FROM clock_timestamp() - known.begun_at), 0) * 1000 / 16)::int8);
            known.begun_at := clock_timestamp();
            IF known.system = 0 THEN
                known.first := known.number;
                known.begun_at := 'epoch';
            ELSIF known.timeline = 0 THEN
                -- The rows may be those of another schema, which began at another time.
                known.first := 0;
            END IF;
            -- A sequence that is beyond is left alone, because others may draw from it now.
            PERFORM setval('lockapi.job_seq', (known.number - known.first) << 24)
               FROM lockapi.job_seq AS j
              WHERE j.last_value < (known.number - known.first) << 24;
            PERFORM setval('lockapi.fence_seq', known.number << 21)
               FROM lockapi.fence_seq AS f WHERE f.last_value < known.number << 21;
            PERFORM setval('lockapi.delivery_seq', known.number << 21)
               FROM lockapi.delivery_seq AS d WHERE d.last_value < known.number << 21;
            UPDATE lockapi.epoch AS e
               SET number = known.number, first = known.first, system = own_system, timeline = own_timeline,
                   place = own_place, begun_at = known.begun_at, waits_from = known.begun_at, id_lead = known.id_lead
             WHERE e.one;
        END;
        -- What a crash may have taken back is left out, once: a table that is not logged has lost its row in it.
        IF NOT EXISTS (SELECT FROM lockapi.since_crash) THEN
            INSERT INTO lockapi.since_crash DEFAULT VALUES ON CONFLICT DO NOTHING;
            IF FOUND THEN
                PERFORM max(nextval('lockapi.fence_seq')) FROM generate_series(1, 16418);
            END IF;
        END IF;
        RETURN known.number;
    END
    $$;

-- Programs of this version leave out nothing themselves from now on.
DO $$ BEGIN PERFORM lockapi.enter_epoch(); END $$;

-- As before (see 0010_push.sql). The job that is found may be that of a push whose session ended while its commit waited
-- for a standby, which everybody sees, and which a promotion may lose. So the function writes to the WAL where it answers
-- its number, and the commit waits for everything that was written before.
CREATE OR REPLACE FUNCTION lockapi.push(
    queue text, name text, payload json DEFAULT 'null',
    namespace text DEFAULT 'default', priority text DEFAULT 'normal', delay interval DEFAULT '0',
    at timestamptz DEFAULT NULL, max_attempts int4 DEFAULT 20, ttl interval DEFAULT '0',
    group_key text DEFAULT NULL, unique_key text DEFAULT NULL, idempotency_key text DEFAULT NULL,
    notify bool DEFAULT true) RETURNS int8
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
    #variable_conflict use_column
    DECLARE
        never constant timestamptz := '20000-01-01 00:00:00+00';
        level constant int4 := array_position(ARRAY['urgent', 'high', 'normal', 'low'], push.priority) - 1;
        most_seconds constant float8 := 3660 * 86400;
        -- Of months and days as well, whose length would depend on the date and the time zone.
        delay_seconds constant float8 := extract(epoch FROM push.delay);
        ttl_seconds constant float8 := extract(epoch FROM push.ttl);
        wrong text;
        due timestamptz;
        expires timestamptz;
        number int8;
        found_expired bool;
    BEGIN
        wrong := (SELECT format('the %s has %s bytes; allowed are 1 to 255 bytes', c.what, coalesce(octet_length(c.value), 0))
                    FROM (VALUES ('name of the queue', push.queue, true), ('name', push.name, true),
                                 ('group', push.group_key, false), ('unique key', push.unique_key, false),
                                 ('idempotency key', push.idempotency_key, false)) AS c (what, value, needed)
                   WHERE coalesce(octet_length(c.value), CASE WHEN c.needed THEN 0 ELSE 1 END) NOT BETWEEN 1 AND 255
                   LIMIT 1);
        wrong := CASE
            WHEN wrong IS NOT NULL THEN wrong
            WHEN coalesce(octet_length(push.namespace), 256) > 255
            THEN 'the namespace is NULL or has more than 255 bytes; allowed are at most 255 bytes'
            WHEN push.payload IS NULL OR octet_length(push.payload::text) > 16777216
            THEN 'the payload is NULL or has more than 16 MiB; allowed is one JSON value of at most 16777216 bytes'
            WHEN level IS NULL
            THEN format('a priority of %L; allowed are urgent, high, normal and low', push.priority)
            WHEN delay_seconds NOT BETWEEN 0 AND most_seconds IS NOT FALSE
            THEN format('a delay of %s; allowed are 0 to 3660 days', coalesce(push.delay::text, 'NULL'))
            WHEN ttl_seconds NOT BETWEEN 0 AND most_seconds IS NOT FALSE
            THEN format('a ttl of %s; allowed are 0, which means for ever, to 3660 days', coalesce(push.ttl::text, 'NULL'))
            WHEN push.at >= timestamptz '10000-01-01 00:00:00+00'
            THEN 'a time after the year 9999; allowed are earlier times'
            WHEN push.max_attempts NOT BETWEEN 1 AND 1000000 IS NOT FALSE
            THEN format('max_attempts of %s; allowed are 1 to 1000000', coalesce(push.max_attempts::text, 'NULL'))
            WHEN starts_with(push.unique_key, 'task/')
            THEN format('the unique key %L; allowed are those that do not begin with task/, as those of runs of tasks do', push.unique_key)
            WHEN push.unique_key IS NOT NULL AND push.idempotency_key IS NOT NULL
            THEN 'the job has a unique key and an idempotency key; allowed is one of them'
        END;
        IF wrong IS NOT NULL THEN
            RAISE EXCEPTION '%', wrong USING ERRCODE = 'invalid_parameter_value';
        END IF;
        due := greatest(push.at, statement_timestamp()) + delay_seconds * interval '1 second';
        expires := CASE WHEN ttl_seconds > 0 THEN due + ttl_seconds * interval '1 second' END;
        IF push.notify THEN
            PERFORM pg_notify('lockapi', lockapi.advisory_key(push.namespace, 'queue ' || push.queue)::text);
        END IF;
        LOOP
            number := NULL;
            IF push.idempotency_key IS NOT NULL THEN
                INSERT INTO lockapi.push_key AS k (namespace, queue, key, job)
                VALUES (push.namespace, push.queue, push.idempotency_key, nextval('lockapi.job_seq'))
                ON CONFLICT DO NOTHING
                RETURNING k.job INTO number;
                IF NOT FOUND THEN
                    SELECT k.job INTO number FROM lockapi.push_key AS k
                     WHERE k.namespace = push.namespace AND k.queue = push.queue AND k.key = push.idempotency_key;
                    IF FOUND THEN
                        PERFORM pg_logical_emit_message(true, 'lockapi', '');
                        RETURN number;
                    END IF;
                    CONTINUE;
                END IF;
            ELSIF push.unique_key IS NOT NULL THEN
                SELECT j.id, j.token IS NULL AND j.attempt = 0 AND coalesce(j.expires_at <= clock_timestamp(), false)
                  INTO number, found_expired
                  FROM lockapi.job AS j
                 WHERE j.namespace COLLATE "POSIX" = push.namespace AND j.queue COLLATE "POSIX" = push.queue
                   AND j.unique_key = push.unique_key;
                IF FOUND AND NOT found_expired THEN
                    PERFORM pg_logical_emit_message(true, 'lockapi', '');
                    RETURN number;
                ELSIF FOUND THEN
                    UPDATE lockapi.job AS j
                       SET name = push.name, payload = push.payload, priority = level, max_attempts = push.max_attempts,
                           error = NULL, errors = NULL, expires_at = expires, group_key = push.group_key,
                           run_at = CASE WHEN push.group_key IS NULL THEN due ELSE never END,
                           due_at = CASE WHEN push.group_key IS NOT NULL THEN due END
                     WHERE j.id = number AND j.token IS NULL AND j.attempt = 0
                       AND coalesce(j.expires_at <= clock_timestamp(), false);
                    IF FOUND THEN
                        RETURN number;
                    END IF;
                    CONTINUE;
                END IF;
            END IF;
            INSERT INTO lockapi.job AS j (id, run_at, due_at, group_key, created_at, max_attempts, priority, namespace, queue,
                                          unique_key, name, payload, expires_at)
            VALUES (coalesce(number, nextval('lockapi.job_seq')),
                    CASE WHEN push.group_key IS NULL THEN due ELSE never END,
                    CASE WHEN push.group_key IS NOT NULL THEN due END, push.group_key, statement_timestamp(),
                    push.max_attempts, level, push.namespace, push.queue, push.unique_key, push.name, push.payload, expires)
            ON CONFLICT (namespace COLLATE "POSIX", queue COLLATE "POSIX", unique_key) WHERE unique_key IS NOT NULL
            DO NOTHING
            RETURNING j.id INTO number;
            IF FOUND THEN
                RETURN number;
            END IF;
        END LOOP;
    END
    $$;

-- As before (see 0002_lease.sql), but what was released and is not kept by a minimum hold is free whatever the clock shows.
CREATE OR REPLACE VIEW lockapi.lease_view AS
    SELECT namespace, key, slot, owner, data, fence,
           expires_at > clock_timestamp() AND released_at IS NULL AS held,
           CASE WHEN expires_at <= clock_timestamp() OR (released_at IS NOT NULL AND held_until IS NULL) THEN 'free'
                WHEN released_at IS NULL THEN 'held' ELSE 'kept' END AS state,
           acquired_at, renewed_at, expires_at, released_at,
           clock_timestamp() - acquired_at AS age,
           expires_at - clock_timestamp() AS expires_in
      FROM lockapi.lease;

-- As before (see 0009_groups.sql), under another lock: it was that of a name that a program may use for a mutex.
--
-- Admits parked jobs of at most "many" groups, and at most four times as many jobs: those that are due, as far as
-- the limits of their groups allow.
--
-- Promises: no more jobs of a group are admitted than its limit, whoever calls this at the same time. A group has
-- its next turn after all others that have parked jobs. In an ordered queue the job with the smallest number is
-- next, and while it is not due, or somebody has its row locked, none is.
-- Answers how many jobs were admitted, how many groups were looked at, and, if no job was admitted, when the next
-- one will be due, in microseconds from now.
-- Race: one at a time for a queue, by an advisory lock that no name of a mutex has, because names have 255 bytes at most. The statements that follow
-- see what was committed before they begin, so also what the one before has admitted, and what has ended
-- since then. A job that is pushed, or ends, at the same time is seen by the next call. Under a stricter isolation
-- than READ COMMITTED they would see an older state: then the second that changes queue_groups fails.
-- Locks: it waits for the advisory lock, holding nothing, and for no row: those that are locked are skipped.
CREATE OR REPLACE FUNCTION lockapi.admit(of_namespace text, of_queue text, many int8)
    RETURNS TABLE (admitted int8, looked int8, next_due int8)
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
    AS $$
    DECLARE
        own lockapi.queue_groups;
        lanes int8[] := '{0,1,2,3}';
        names text[];
        free text[];
        rooms int8[];
        ids int8[];
        last text;
        moment timestamptz;
    BEGIN
        PERFORM pg_advisory_xact_lock(lockapi.advisory_key(of_namespace, repeat('#', 256) || 'groups ' || of_queue));
        moment := clock_timestamp();
        SELECT q.* INTO own FROM lockapi.queue_groups AS q WHERE q.namespace = of_namespace AND q.queue = of_queue;
        own.most := coalesce(own.most, 1);
        own.turns := coalesce(own.turns, 0);
        own.reached := coalesce(own.reached, '');
        IF own.turns % 16 = 15 THEN
            lanes := '{3,2,1,0}';
        END IF;
        names := ARRAY(
            WITH RECURSIVE part (name, n) AS (
                (SELECT j.group_key, 1
                   FROM lockapi.job AS j
                  WHERE j.namespace COLLATE "POSIX" = of_namespace AND j.queue COLLATE "POSIX" = of_queue
                    AND j.due_at IS NOT NULL AND j.group_key > own.reached
                  ORDER BY j.group_key
                  LIMIT 1)
                UNION ALL
                SELECT o.group_key, p.n + 1
                  FROM part AS p
                 CROSS JOIN LATERAL (
                       SELECT j.group_key
                         FROM lockapi.job AS j
                        WHERE j.namespace COLLATE "POSIX" = of_namespace AND j.queue COLLATE "POSIX" = of_queue
                          AND j.due_at IS NOT NULL AND j.group_key > p.name
                        ORDER BY j.group_key
                        LIMIT 1) AS o
                 WHERE p.n < many
            )
            SELECT p.name FROM part AS p ORDER BY p.n);
        IF cardinality(names) < many AND own.reached <> '' THEN
            names := names || ARRAY(
                WITH RECURSIVE part (name, n) AS (
                    (SELECT j.group_key, cardinality(names) + 1
                       FROM lockapi.job AS j
                      WHERE j.namespace COLLATE "POSIX" = of_namespace AND j.queue COLLATE "POSIX" = of_queue
                        AND j.due_at IS NOT NULL AND j.group_key <= own.reached
                      ORDER BY j.group_key
                      LIMIT 1)
                    UNION ALL
                    SELECT o.group_key, p.n + 1
                      FROM part AS p
                     CROSS JOIN LATERAL (
                           SELECT j.group_key
                             FROM lockapi.job AS j
                            WHERE j.namespace COLLATE "POSIX" = of_namespace AND j.queue COLLATE "POSIX" = of_queue
                              AND j.due_at IS NOT NULL AND j.group_key > p.name AND j.group_key <= own.reached
                            ORDER BY j.group_key
                            LIMIT 1) AS o
                     WHERE p.n < many
                )
                SELECT p.name FROM part AS p ORDER BY p.n);
        END IF;
        -- Those that have room, and how much.
        SELECT array_agg(r.name ORDER BY r.n), array_agg(r.room ORDER BY r.n) INTO free, rooms
          FROM (SELECT g.n, g.name, l.most - (
                       SELECT count(*)
                         FROM (SELECT
                                 FROM lockapi.job AS j
                                WHERE j.namespace COLLATE "POSIX" = of_namespace AND j.queue COLLATE "POSIX" = of_queue
                                  AND j.group_key = g.name AND j.due_at IS NULL
                                LIMIT l.most) AS a) AS room
                  FROM unnest(names) WITH ORDINALITY AS g (name, n)
                 CROSS JOIN LATERAL (
                       SELECT CASE WHEN own.ordered THEN 1
                                   ELSE coalesce((SELECT o.most FROM lockapi.group_limit AS o
                                                   WHERE o.namespace = of_namespace AND o.queue = of_queue
                                                     AND o.group_key = g.name), own.most) END AS most
                       OFFSET 0) AS l) AS r
         WHERE r.room > 0;
        -- What is read is read and locked in one statement, and checked again on the locked row.
        IF own.ordered THEN
            SELECT array_agg(p.id), (array_agg(p.name ORDER BY p.n DESC))[1] INTO ids, last
              FROM (SELECT k.id, g.name, g.n
                      FROM unnest(free) WITH ORDINALITY AS g (name, n)
                     CROSS JOIN LATERAL (
                           SELECT j.id, j.due_at
                             FROM lockapi.job AS j
                            WHERE (j.namespace || '') = of_namespace AND (j.queue || '') = of_queue
                              AND (j.group_key || '') = g.name AND coalesce(j.due_at <= 'infinity'::timestamptz, false)
                            ORDER BY j.id + 0
                            LIMIT 1) AS h
                     CROSS JOIN LATERAL (
                           SELECT j.id
                             FROM lockapi.job AS j
                            WHERE j.id = h.id AND j.group_key COLLATE "POSIX" = g.name AND (j.due_at <= moment) IS TRUE
                            LIMIT 1
                              FOR UPDATE OF j SKIP LOCKED) AS k
                     WHERE h.due_at <= moment) AS p;
        ELSE
            SELECT array_agg(p.id), (array_agg(p.name ORDER BY p.n DESC))[1] INTO ids, last
              FROM (SELECT k.id, g.name, g.n
                      FROM ROWS FROM (unnest(free), unnest(rooms)) WITH ORDINALITY AS g (name, room, n)
                     CROSS JOIN LATERAL (
                           SELECT o.id
                             FROM unnest(lanes) AS lane (priority)
                            CROSS JOIN LATERAL (
                                  SELECT j.id
                                    FROM lockapi.job AS j
                                   WHERE j.namespace COLLATE "POSIX" = of_namespace AND j.queue COLLATE "POSIX" = of_queue
                                     AND j.group_key = g.name AND j.priority = lane.priority AND j.due_at <= moment
                                   ORDER BY j.due_at, j.id + 0
                                   LIMIT g.room
                                     FOR UPDATE OF j SKIP LOCKED) AS o
                            LIMIT g.room) AS k
                     LIMIT many * 4) AS p;
        END IF;
        admitted := coalesce(cardinality(ids), 0);
        looked := cardinality(names);
        -- A crash that loses this parks them again: whoever claims one waits for the disk.
        PERFORM set_config('synchronous_commit', 'off', true);
        IF admitted > 0 THEN
            UPDATE lockapi.job AS j SET run_at = moment, due_at = NULL WHERE j.id = ANY (ids);
        END IF;
        IF admitted > 0 OR looked >= many THEN
            INSERT INTO lockapi.queue_groups AS q (namespace, queue, turns, reached)
            VALUES (of_namespace, of_queue, 1, CASE WHEN admitted < many * 4 THEN names[looked] ELSE last END)
            ON CONFLICT (namespace, queue) DO UPDATE SET turns = q.turns + 1, reached = EXCLUDED.reached;
        END IF;
        IF admitted = 0 AND own.ordered THEN
            SELECT (extract(epoch FROM min(h.due_at) - moment) * 1000000)::int8 INTO next_due
              FROM unnest(free) AS g (name)
             CROSS JOIN LATERAL (
                   SELECT j.due_at
                     FROM lockapi.job AS j
                    WHERE (j.namespace || '') = of_namespace AND (j.queue || '') = of_queue
                      AND (j.group_key || '') = g.name AND coalesce(j.due_at <= 'infinity'::timestamptz, false)
                    ORDER BY j.id + 0
                    LIMIT 1) AS h
             WHERE h.due_at > moment;
        ELSIF admitted = 0 THEN
            SELECT (extract(epoch FROM min(h.due_at) - moment) * 1000000)::int8 INTO next_due
              FROM unnest(free) AS g (name)
             CROSS JOIN unnest(lanes) AS lane (priority)
             CROSS JOIN LATERAL (
                   SELECT j.due_at
                     FROM lockapi.job AS j
                    WHERE j.namespace COLLATE "POSIX" = of_namespace AND j.queue COLLATE "POSIX" = of_queue
                      AND j.group_key = g.name AND j.priority = lane.priority AND j.due_at > moment
                    ORDER BY j.due_at
                    LIMIT 1) AS h;
        END IF;
        RETURN NEXT;
    END
    $$;
