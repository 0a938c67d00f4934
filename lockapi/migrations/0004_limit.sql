-- Rate limits: one row a key. A row whose times have all passed means the same as no row, so idle
-- rows are swept.
--
-- Times are nanoseconds since 1970. No index mentions what changes, and pages are half empty: taking
-- permits then updates the row in place (HOT). The primary key begins with the key: the array of a batch
-- then is a condition of the index, whatever statistics say.

SET LOCAL search_path = pg_catalog, pg_temp;

CREATE TABLE lockapi.rate_limit (
    namespace     text COLLATE "C" NOT NULL,
    key           text COLLATE "C" NOT NULL,
    tat           int8             NOT NULL DEFAULT 0,
    taken         int8             NOT NULL DEFAULT 0,
    at            int8             NOT NULL DEFAULT 0,
    started       int8,
    used          int8,
    before        int8,
    blocked_until int8,
    due           int8,
    reserved      int8[],
    PRIMARY KEY (key, namespace)
) WITH (fillfactor = 50);

COMMENT ON TABLE lockapi.rate_limit IS 'Rate limits, one row a key; times are nanoseconds since 1970.';
COMMENT ON COLUMN lockapi.rate_limit.namespace IS 'Namespace of the backend.';
COMMENT ON COLUMN lockapi.rate_limit.key IS 'Key of the limit: a name, #number or #class,object.';
COMMENT ON COLUMN lockapi.rate_limit.tat IS 'Theoretical arrival time: when all that was taken has flowed back. Of windows: when nothing of them counts any more.';
COMMENT ON COLUMN lockapi.rate_limit.taken IS 'How many requests the latest statement admitted.';
COMMENT ON COLUMN lockapi.rate_limit.at IS 'When the latest statement decided.';
COMMENT ON COLUMN lockapi.rate_limit.started IS 'When the window started; NULL without windows.';
COMMENT ON COLUMN lockapi.rate_limit.used IS 'Permits taken in the window.';
COMMENT ON COLUMN lockapi.rate_limit.before IS 'Permits taken in the window before.';
COMMENT ON COLUMN lockapi.rate_limit.blocked_until IS 'Everything is refused until then; NULL when it was never blocked.';
COMMENT ON COLUMN lockapi.rate_limit.due IS 'When the first reservation expires; NULL without reservations.';
COMMENT ON COLUMN lockapi.rate_limit.reserved IS 'Reservations, five numbers each: its own number, when it was taken, what it took (nanoseconds, or permits of windows), the length of the window or 0, when it expires.';

-- The time of the server, read anew at each call.
CREATE FUNCTION lockapi.clock() RETURNS int8
    LANGUAGE sql VOLATILE
    AS $$
        SELECT (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8
               OPERATOR(pg_catalog.*) 1000
    $$;

COMMENT ON FUNCTION lockapi.clock() IS 'Nanoseconds since 1970, in steps of a microsecond.';

CREATE VIEW lockapi.rate_limit_view AS
    SELECT namespace, key,
           to_timestamp(at / 1000000000.0) AS decided_at,
           greatest(to_timestamp(tat / 1000000000.0) - clock_timestamp(), interval '0') AS idle_in,
           to_timestamp(started / 1000000000.0) AS window_started_at, used, before,
           to_timestamp(blocked_until / 1000000000.0) AS blocked_until,
           coalesce(cardinality(reserved), 0) / 5 AS reservations
      FROM lockapi.rate_limit;

COMMENT ON VIEW lockapi.rate_limit_view IS 'Rate limits as a person wants to read them: when used last, when idle again, whether blocked.';

-- What is left of a limit: nanoseconds, or permits of windows of a length; below 1 while blocked.
CREATE FUNCTION lockapi.limit_room(tat int8, started int8, used int8, before int8, blocked_until int8,
                                   length int8, sliding bool, depth int8, now int8) RETURNS int8
    LANGUAGE sql IMMUTABLE
    AS $$
        SELECT CASE
            WHEN blocked_until OPERATOR(pg_catalog.>) now THEN 0
            WHEN length OPERATOR(pg_catalog.=) 0
            THEN now OPERATOR(pg_catalog.+) depth
                 OPERATOR(pg_catalog.-) greatest(now, least(tat, now OPERATOR(pg_catalog.+) depth))
            WHEN started IS NULL OR now OPERATOR(pg_catalog.<) started THEN depth
            WHEN now OPERATOR(pg_catalog.<) (started OPERATOR(pg_catalog.+) length)
            THEN (depth OPERATOR(pg_catalog.-) used) OPERATOR(pg_catalog.-)
                 CASE WHEN sliding AND before OPERATOR(pg_catalog.>) 0
                      THEN ((before OPERATOR(pg_catalog.*) least(1000000,
                                (((length OPERATOR(pg_catalog.-) (now OPERATOR(pg_catalog.-) started))
                                  OPERATOR(pg_catalog.+) (length OPERATOR(pg_catalog./) 1000000)) OPERATOR(pg_catalog.-) 1)
                                OPERATOR(pg_catalog./) (length OPERATOR(pg_catalog./) 1000000)))
                            OPERATOR(pg_catalog.+) 999999) OPERATOR(pg_catalog./) 1000000
                      ELSE 0 END
            WHEN sliding AND now OPERATOR(pg_catalog.<) (started OPERATOR(pg_catalog.+) (2 OPERATOR(pg_catalog.*) length))
            THEN depth OPERATOR(pg_catalog.-)
                 (((used OPERATOR(pg_catalog.*) least(1000000,
                       ((((2 OPERATOR(pg_catalog.*) length) OPERATOR(pg_catalog.-) (now OPERATOR(pg_catalog.-) started))
                         OPERATOR(pg_catalog.+) (length OPERATOR(pg_catalog./) 1000000)) OPERATOR(pg_catalog.-) 1)
                       OPERATOR(pg_catalog./) (length OPERATOR(pg_catalog./) 1000000)))
                   OPERATOR(pg_catalog.+) 999999) OPERATOR(pg_catalog./) 1000000)
            ELSE depth END
    $$;

COMMENT ON FUNCTION lockapi.limit_room(int8, int8, int8, int8, int8, int8, bool, int8, int8)
    IS 'What is left of a limit: nanoseconds, or permits of windows of a length.';
