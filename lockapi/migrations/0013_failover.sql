-- Tokens after a crash, pushes that are acknowledged again, and the end of the epochs.
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

-- As before (see 0007_epoch.sql), and once after each crash leaves out the tokens that the crash took back.
CREATE OR REPLACE FUNCTION lockapi.enter_epoch() RETURNS int8
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
    DECLARE
        gap constant int8 := 32768;
        near constant int8 := 60;
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
        -- Some managed servers speak the protocol and do not have these.
        BEGIN
            own_system := (SELECT c.system_identifier FROM pg_control_system() AS c);
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
