-- Epochs. A standby that becomes the primary, and a database that was restored from a backup, may not have all
-- that was committed before. Sequences would then go back, and leases and ids be given a second time. So each
-- server that takes over begins an epoch, before anything is drawn from it.
--
-- The number of an epoch is the time at which it began, in seconds since 2025, and the sequences of tokens go
-- on at that number times 2^21: no server draws two million tokens in a second, so what an earlier epoch drew,
-- replicated or not, known here or not, is smaller. Where the clock is behind the epoch that is known here, the
-- number is larger by 1, or by 2^15 if the clock is a minute behind. Numbers of jobs go on at 2^24 for each second
-- since the first epoch.

SET LOCAL search_path = pg_catalog, pg_temp;

CREATE TABLE lockapi.epoch (
    one      bool        NOT NULL DEFAULT true PRIMARY KEY CHECK (one),
    number   int8        NOT NULL,
    first    int8        NOT NULL,
    system   int8        NOT NULL,
    timeline int8        NOT NULL,
    place    int8        NOT NULL,
    begun_at timestamptz NOT NULL,
    waits_from timestamptz NOT NULL,
    id_lead  int8        NOT NULL DEFAULT 90000
);

COMMENT ON TABLE lockapi.epoch IS 'The epoch that the server is in: one row. To begin another, after the files of the server were set back to an earlier state without a new timeline, set timeline to 0.';
COMMENT ON COLUMN lockapi.epoch.one IS 'There is one row.';
COMMENT ON COLUMN lockapi.epoch.number IS 'Its number, which is larger than that of each earlier epoch, in seconds since 2025.';
COMMENT ON COLUMN lockapi.epoch.first IS 'The number of the first epoch.';
COMMENT ON COLUMN lockapi.epoch.system IS 'The system identifier of the server that began it; -1 where the server does not tell.';
COMMENT ON COLUMN lockapi.epoch.timeline IS 'The timeline of the server that began it; -1 where the server does not tell.';
COMMENT ON COLUMN lockapi.epoch.place IS 'The OIDs of the database and of this table, which a restored dump has not.';
COMMENT ON COLUMN lockapi.epoch.begun_at IS 'When it began; 1970 for the first, before which nothing was granted. What has a later time was written in this epoch.';
COMMENT ON COLUMN lockapi.epoch.waits_from IS 'From when on whoever waits for the end of a time to live that may have been lost counts: when it began, or when the clock had been set back since.';
COMMENT ON COLUMN lockapi.epoch.id_lead IS 'How far ahead of its beginning the ids start whose worker numbers are claimed in it, in milliseconds.';

ALTER TABLE lockapi.id_block ADD COLUMN epoch int8 NOT NULL DEFAULT 0;

COMMENT ON COLUMN lockapi.id_block.epoch IS 'The epoch in which ids were last handed out, the first if it is 0. A later one leaves out 2^24 ids for each second that lies between the two.';

-- Answers the number of the epoch, and begins one where the server has not.
--
-- Sessions that find no epoch begun meet at its row. What a transaction began that was rolled back is begun
-- again; sequences do not go back, and are not moved on twice. Where the clock was set back since an epoch began,
-- whoever waits for the end of a time to live counts from now on, and waits no longer than that.
CREATE FUNCTION lockapi.enter_epoch() RETURNS int8
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
        IF known.system = own_system AND known.timeline = own_timeline AND known.place = own_place
           AND known.waits_from <= clock_timestamp() THEN
            RETURN known.number;
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
            RETURN known.number;
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
        RETURN known.number;
    END
    $$;

COMMENT ON FUNCTION lockapi.enter_epoch() IS 'The number of the epoch that the server is in; begins one if the server was promoted or restored.';

-- Whoever may only read begins no epoch.
REVOKE EXECUTE ON FUNCTION lockapi.enter_epoch() FROM PUBLIC;

-- The first begins here.
INSERT INTO lockapi.epoch (number, first, system, timeline, place, begun_at, waits_from)
VALUES (0, 0, 0, 0, 0, 'epoch', 'epoch');
DO $$ BEGIN PERFORM lockapi.enter_epoch(); END $$;
