-- Ids: who may make them with which number, up to which time, and blocks of consecutive ids.
--
-- Rows stay: a number that is free again keeps the time below which its ids may have been made. No
-- index mentions floor or expires_at, so a renewal updates the row in place (HOT).

SET LOCAL search_path = pg_catalog, pg_temp;

CREATE TABLE lockapi.id_space (
    namespace     text COLLATE "C" NOT NULL,
    name          text COLLATE "C" NOT NULL,
    worker_bits   int8             NOT NULL,
    sequence_bits int8             NOT NULL,
    epoch         int8             NOT NULL,
    PRIMARY KEY (namespace, name)
);

COMMENT ON TABLE lockapi.id_space IS 'The layout of the ids of each name: two layouts under one name would make the same id twice. To replace a layout of which no id is in use, end the programs that use the name and delete its rows here and in id_worker.';
COMMENT ON COLUMN lockapi.id_space.namespace IS 'Namespace of the backend.';
COMMENT ON COLUMN lockapi.id_space.name IS 'Name of the ids.';
COMMENT ON COLUMN lockapi.id_space.worker_bits IS 'How many bits of an id are the number of its worker.';
COMMENT ON COLUMN lockapi.id_space.sequence_bits IS 'How many bits of an id count within a millisecond.';
COMMENT ON COLUMN lockapi.id_space.epoch IS 'The time that ids count from, in milliseconds since 1970.';

CREATE TABLE lockapi.id_worker (
    namespace  text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    worker     int8             NOT NULL,
    token      int8             NOT NULL,
    floor      int8             NOT NULL,
    owner      text             NOT NULL,
    claimed_at timestamptz      NOT NULL,
    renewed_at timestamptz      NOT NULL,
    expires_at timestamptz      NOT NULL,
    PRIMARY KEY (namespace, name, worker)
) WITH (fillfactor = 50);

COMMENT ON TABLE lockapi.id_worker IS 'Who makes ids with which worker number, and up to which time.';
COMMENT ON COLUMN lockapi.id_worker.namespace IS 'Namespace of the backend.';
COMMENT ON COLUMN lockapi.id_worker.name IS 'Name of the ids.';
COMMENT ON COLUMN lockapi.id_worker.worker IS 'The number that the ids carry.';
COMMENT ON COLUMN lockapi.id_worker.token IS 'Random number of the claim; only its owner renews it. 0 when it was given back.';
COMMENT ON COLUMN lockapi.id_worker.floor IS 'In milliseconds since 1970: the owner makes ids of earlier times only, its successor of this time and later.';
COMMENT ON COLUMN lockapi.id_worker.owner IS 'Who claimed it last.';
COMMENT ON COLUMN lockapi.id_worker.claimed_at IS 'When it was claimed last.';
COMMENT ON COLUMN lockapi.id_worker.renewed_at IS 'When its owner last renewed it.';
COMMENT ON COLUMN lockapi.id_worker.expires_at IS 'Others may claim it from this time on, or when the token is 0.';

CREATE TABLE lockapi.id_block (
    namespace text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    next      int8             NOT NULL,
    PRIMARY KEY (namespace, name)
) WITH (fillfactor = 50);

COMMENT ON TABLE lockapi.id_block IS 'Sequences that are handed out in blocks. After a restore, set next beyond the largest id in use before programs begin.';
COMMENT ON COLUMN lockapi.id_block.namespace IS 'Namespace of the backend.';
COMMENT ON COLUMN lockapi.id_block.name IS 'Name of the ids.';
COMMENT ON COLUMN lockapi.id_block.next IS 'The first id that no process has been given.';

CREATE VIEW lockapi.id_worker_view AS
    SELECT namespace, name, worker, owner,
           token <> 0 AND expires_at > clock_timestamp() AS held,
           claimed_at, renewed_at, expires_at,
           'epoch'::timestamptz + floor * interval '1 millisecond' AS floor,
           expires_at - clock_timestamp() AS expires_in
      FROM lockapi.id_worker;

COMMENT ON VIEW lockapi.id_worker_view IS 'Worker numbers as a person wants to read them: who has which, and for how long still.';
