-- What the programs write, for the checker.
--
-- Promises: a write takes the next version of its register, so that versions are the order in which writes
-- were accepted. A count reads first and writes later, so that two that overlap lose one.
-- Index: the primary keys.
-- Race: the row of the register is locked until the transaction ends; counters are guarded by the locks
-- under test alone.
CREATE SCHEMA torture;

CREATE TABLE torture.register (name text PRIMARY KEY, version int8 NOT NULL DEFAULT 0);
CREATE TABLE torture.accepted (
    name    text NOT NULL,
    version int8 NOT NULL,
    token   int8 NOT NULL,
    value   int8 NOT NULL,
    PRIMARY KEY (name, version)
);

CREATE FUNCTION torture.write(the_name text, the_token int8, the_value int8) RETURNS int8 LANGUAGE sql AS $$
    WITH next AS (
        INSERT INTO torture.register AS r (name, version) VALUES ($1, 1)
        ON CONFLICT (name) DO UPDATE SET version = r.version + 1
        RETURNING version
    )
    INSERT INTO torture.accepted (name, version, token, value)
    SELECT $1, version, $2, $3 FROM next
    RETURNING version
$$;

CREATE TABLE torture.counter (name text PRIMARY KEY, n int8 NOT NULL);

CREATE FUNCTION torture.count(the_name text, pause float8) RETURNS int8 LANGUAGE plpgsql AS $$
DECLARE
    seen int8;
BEGIN
    SELECT c.n INTO STRICT seen FROM torture.counter AS c WHERE c.name = the_name;
    PERFORM pg_sleep(pause);
    UPDATE torture.counter AS c SET n = seen + 1 WHERE c.name = the_name;
    RETURN seen + 1;
END $$;

-- What handlers did: in the transaction that acknowledged the job, or before.
CREATE TABLE torture.effect (job int8 NOT NULL, token int8 NOT NULL, exact bool NOT NULL);

CREATE FUNCTION torture.effect(the_job int8, the_token int8, exactly bool) RETURNS int8 LANGUAGE sql AS $$
    INSERT INTO torture.effect (job, token, exact) VALUES ($1, $2, $3) RETURNING job
$$;

-- What the runs of tasks did, in the transaction that acknowledged them.
CREATE TABLE torture.ran (job int8 NOT NULL, token int8 NOT NULL);

CREATE FUNCTION torture.run(the_job int8, the_token int8) RETURNS int8 LANGUAGE sql AS $$
    INSERT INTO torture.ran (job, token) VALUES ($1, $2) RETURNING job
$$;

-- Jobs that were pushed in a transaction that also wrote this.
CREATE TABLE torture.sent (job int8 PRIMARY KEY);

CREATE FUNCTION torture.sent(the_job int8) RETURNS int8 LANGUAGE sql AS $$
    INSERT INTO torture.sent (job) VALUES ($1) RETURNING job
$$;
