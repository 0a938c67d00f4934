-- The schema that every lockapi backend shares.
--
-- Rights: lockapi::rights::grants() prints what a role needs that works, reads the views or operates.
-- Only the role that runs migrate() needs CREATE on the database.

SET LOCAL search_path = pg_catalog, pg_temp;

-- Where it is there, its owner need not be who may create another.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_namespace AS n WHERE n.nspname = 'lockapi') THEN
        CREATE SCHEMA lockapi;
        COMMENT ON SCHEMA lockapi IS 'Locks, leases and other coordination state of the lockapi library.';
    END IF;
END $$;

CREATE TABLE lockapi.migration (
    version    int8        NOT NULL PRIMARY KEY,
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);

COMMENT ON TABLE lockapi.migration IS 'Which migrations have been applied.';
COMMENT ON COLUMN lockapi.migration.version IS 'The number that the file name starts with.';
COMMENT ON COLUMN lockapi.migration.name IS 'The file name without its number and ending.';
COMMENT ON COLUMN lockapi.migration.checksum IS 'SHA-256 of the file, in hexadecimal.';
COMMENT ON COLUMN lockapi.migration.applied_at IS 'When it was applied.';

-- A fencing token is a value of this sequence times 1024 plus a hand-over count, so 53 bits are
-- the sequence's.
CREATE SEQUENCE lockapi.fence_seq AS int8 MINVALUE 1 MAXVALUE 9007199254740991 NO CYCLE CACHE 1;

COMMENT ON SEQUENCE lockapi.fence_seq IS 'Source of fencing tokens, which increase from holder to holder.';

CREATE TABLE lockapi.fence_mark (
    namespace text COLLATE "C" NOT NULL,
    key       text COLLATE "C" NOT NULL,
    fence      int8            NOT NULL,
    checked_at timestamptz     NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (namespace, key)
) WITH (fillfactor = 70);

COMMENT ON TABLE lockapi.fence_mark IS 'The highest fencing token of a mutex that was checked in by a transaction; a lower one is refused.';
COMMENT ON COLUMN lockapi.fence_mark.namespace IS 'Namespace of the backend.';
COMMENT ON COLUMN lockapi.fence_mark.key IS 'Key of the mutex: a name, #number or #class,object.';
COMMENT ON COLUMN lockapi.fence_mark.fence IS 'The token.';
COMMENT ON COLUMN lockapi.fence_mark.checked_at IS 'When a holder last checked in. The row goes a day later, once no session that was there then holds an advisory lock.';

-- Functions that the server writes into the statements that call them would lose that with a search_path
-- of their own: theirs names the schema of all that they use.

-- The advisory lock key of a name: first eight bytes, big-endian, of SHA-256 over the namespace,
-- a zero byte and the name.
CREATE FUNCTION lockapi.advisory_key(namespace text, name text) RETURNS int8
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$
        SELECT ('x' OPERATOR(pg_catalog.||) pg_catalog.encode(pg_catalog.substring(pg_catalog.sha256(
            pg_catalog.convert_to($1, 'UTF8') OPERATOR(pg_catalog.||) pg_catalog.decode('00', 'hex')
                OPERATOR(pg_catalog.||) pg_catalog.convert_to($2, 'UTF8')
        ), 1, 8), 'hex'))::pg_catalog.bit(64)::pg_catalog.int8
    $$;

COMMENT ON FUNCTION lockapi.advisory_key(text, text) IS 'The advisory lock key that stands for a name in a namespace.';

-- Takes an advisory lock for the session or the transaction, alone or shared; false when lock_timeout runs out, so
-- that a wait in vain is no error: it is not logged, and a transaction that is open goes on.
-- Sessions that wait in slices come and go in the queues of locks. The server may take two of them, each of which
-- waits behind the other for a moment, for a deadlock, and end the wait of a third. So a deadlock counts when it is
-- found again.
CREATE FUNCTION lockapi.await_lock(key int8, pair bool, shared bool, for_transaction bool) RETURNS bool
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
    DECLARE
        class  int4 := key >> 32;
        object int4 := (key << 32) >> 32;
        found_before bool := false;
    BEGIN
        LOOP
            BEGIN
                IF pair AND for_transaction AND shared THEN
                    PERFORM pg_catalog.pg_advisory_xact_lock_shared(class, object);
                ELSIF pair AND for_transaction THEN
                    PERFORM pg_catalog.pg_advisory_xact_lock(class, object);
                ELSIF pair AND shared THEN
                    PERFORM pg_catalog.pg_advisory_lock_shared(class, object);
                ELSIF pair THEN
                    PERFORM pg_catalog.pg_advisory_lock(class, object);
                ELSIF for_transaction AND shared THEN
                    PERFORM pg_catalog.pg_advisory_xact_lock_shared(key);
                ELSIF for_transaction THEN
                    PERFORM pg_catalog.pg_advisory_xact_lock(key);
                ELSIF shared THEN
                    PERFORM pg_catalog.pg_advisory_lock_shared(key);
                ELSE
                    PERFORM pg_catalog.pg_advisory_lock(key);
                END IF;
                RETURN true;
            EXCEPTION WHEN lock_not_available THEN
                RETURN false;
            WHEN deadlock_detected THEN
                IF found_before THEN
                    RAISE;
                END IF;
                found_before := true;
            END;
        END LOOP;
    END
    $$;

COMMENT ON FUNCTION lockapi.await_lock(int8, bool, bool, bool) IS 'Waits for an advisory lock; false after lock_timeout.';
