-- Rate limits: one row a key. A row whose times have all passed means the same as no row, so idle
-- rows are swept.
--
-- Times are nanoseconds since 1970. No index mentions what changes, and pages are half empty: taking
-- permits then updates the row in place (HOT). The primary key begins with the key: the array of a batch
-- then is a condition of the index, whatever statistics say.
--
-- The cell rate algorithm and windows each have a state of their own. Neither depends on the quota that
-- looks: a quota with a smaller burst or a shorter window forgets nothing that a larger one counts.
-- Times are as of "at". When that is still to come, the clock was set back, and all of them are moved
-- back by as much. The checks keep the arithmetic of every statement within an int8.

SET LOCAL search_path = pg_catalog, pg_temp;

CREATE TABLE lockapi.rate_limit (
    namespace     text COLLATE "C" NOT NULL,
    key           text COLLATE "C" NOT NULL,
    tat           int8             NOT NULL DEFAULT 0,
    taken         int8             NOT NULL DEFAULT 0,
    at            int8             NOT NULL DEFAULT 0,
    started       int8,
    span          int8             NOT NULL DEFAULT 0,
    used          int8             NOT NULL DEFAULT 0,
    before        int8             NOT NULL DEFAULT 0,
    slide         int8             NOT NULL DEFAULT 0,
    span_before   int8             NOT NULL DEFAULT 0,
    blocked_until int8,
    due           int8,
    reserved      int8             NOT NULL DEFAULT 0,
    PRIMARY KEY (key, namespace),
    -- Ten years, the longest time in which a burst flows back, and one year, the longest window.
    CONSTRAINT rate_limit_times CHECK (
        at BETWEEN -4000000000000000000 AND 4000000000000000000
        AND tat BETWEEN -4000000000000000000 AND at + 316224000000000000
        AND started BETWEEN -4000000000000000000 AND at
        AND span BETWEEN 0 AND 31622400000000000
        AND slide BETWEEN 0 AND 31622400000000000
        AND span_before BETWEEN 0 AND 31622400000000000),
    CONSTRAINT rate_limit_counts CHECK (
        used BETWEEN 0 AND 1000000000 AND before BETWEEN 0 AND 1000000000
        AND reserved BETWEEN 0 AND 10000)
) WITH (fillfactor = 50);

-- What is reserved. Its holder finds it by its number, a random one, and whoever decides on the limit by
-- the time when it expires: no column is in both indexes, so that no statistics lead to the wrong one.
CREATE TABLE lockapi.rate_reservation (
    id        int8             NOT NULL PRIMARY KEY,
    namespace text COLLATE "C" NOT NULL,
    key       text COLLATE "C" NOT NULL,
    at        int8             NOT NULL,
    expires   int8             NOT NULL,
    price     int8             NOT NULL,
    span      int8             NOT NULL,
    CONSTRAINT rate_reservation_times CHECK (
        at BETWEEN -4000000000000000000 AND 4000000000000000000
        AND price BETWEEN 0 AND 316224000000000000
        AND span BETWEEN 0 AND 31622400000000000)
);

CREATE INDEX rate_reservation_due ON lockapi.rate_reservation (key, namespace, expires);

COMMENT ON TABLE lockapi.rate_limit IS 'Rate limits, one row a key; times are nanoseconds since 1970.';
COMMENT ON COLUMN lockapi.rate_limit.namespace IS 'Namespace of the backend.';
COMMENT ON COLUMN lockapi.rate_limit.key IS 'Key of the limit: a name, #number or #class,object.';
COMMENT ON COLUMN lockapi.rate_limit.tat IS 'Theoretical arrival time: when all that was taken by the cell rate algorithm has flowed back.';
COMMENT ON COLUMN lockapi.rate_limit.taken IS 'How many requests the latest statement admitted.';
COMMENT ON COLUMN lockapi.rate_limit.at IS 'When the latest statement decided; the other times are as of then.';
COMMENT ON COLUMN lockapi.rate_limit.started IS 'When the window started; NULL without windows.';
COMMENT ON COLUMN lockapi.rate_limit.span IS 'Length of the window: the longest of those that have taken in it, and of the sliding ones that took in the one before. Twice as long after it started nothing of it counts.';
COMMENT ON COLUMN lockapi.rate_limit.used IS 'Permits taken in the window.';
COMMENT ON COLUMN lockapi.rate_limit.before IS 'Permits taken in the window before.';
COMMENT ON COLUMN lockapi.rate_limit.slide IS 'Length of the longest sliding window that has taken in the window; the next window is as long at least.';
COMMENT ON COLUMN lockapi.rate_limit.span_before IS 'Length of the window before.';
COMMENT ON COLUMN lockapi.rate_limit.blocked_until IS 'Everything is refused until then; NULL when it was never blocked.';
COMMENT ON COLUMN lockapi.rate_limit.due IS 'No reservation expires earlier; NULL without reservations.';
COMMENT ON COLUMN lockapi.rate_limit.reserved IS 'How many reservations are open.';

COMMENT ON TABLE lockapi.rate_reservation IS 'Permits that are taken and may be given back in part; changed only while the row of the limit is locked.';
COMMENT ON COLUMN lockapi.rate_reservation.id IS 'Its random number.';
COMMENT ON COLUMN lockapi.rate_reservation.namespace IS 'Namespace of the backend.';
COMMENT ON COLUMN lockapi.rate_reservation.key IS 'Key of the limit.';
COMMENT ON COLUMN lockapi.rate_reservation.expires IS 'When it ends by itself, and all of it is given back.';
COMMENT ON COLUMN lockapi.rate_reservation.at IS 'When it was taken.';
COMMENT ON COLUMN lockapi.rate_reservation.price IS 'What it took: nanoseconds, or permits of windows.';
COMMENT ON COLUMN lockapi.rate_reservation.span IS 'Length of the window; 0 without windows.';

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
           greatest(to_timestamp(greatest(tat, started + 2 * span) / 1000000000.0) - clock_timestamp(),
                    interval '0') AS idle_in,
           to_timestamp(started / 1000000000.0) AS window_started_at, used, before,
           to_timestamp(blocked_until / 1000000000.0) AS blocked_until,
           reserved AS reservations
      FROM lockapi.rate_limit;

COMMENT ON VIEW lockapi.rate_limit_view IS 'Rate limits as a person wants to read them: when used last, when idle again, whether blocked.';

-- What counts of the permits of a window of a length, when some time of the next one has passed: in steps
-- of a millionth of the window, rounded up.
CREATE FUNCTION lockapi.limit_overlap(permits int8, length int8, age int8) RETURNS int8
    LANGUAGE sql IMMUTABLE
    AS $$
        SELECT ((permits OPERATOR(pg_catalog.*) greatest(0, least(1000000,
                    (((length OPERATOR(pg_catalog.-) age) OPERATOR(pg_catalog.+) (length OPERATOR(pg_catalog./) 1000000))
                     OPERATOR(pg_catalog.-) 1) OPERATOR(pg_catalog./) (length OPERATOR(pg_catalog./) 1000000))))
                OPERATOR(pg_catalog.+) 999999) OPERATOR(pg_catalog./) 1000000
    $$;

COMMENT ON FUNCTION lockapi.limit_overlap(int8, int8, int8)
    IS 'What counts of the permits of the window before, when a part of the window has passed; rounded up.';

-- What is left of a limit: nanoseconds, or permits of windows of a length; below 1 while blocked. A
-- window is as long as the longest of those that have taken in it, or that look, and as the longest sliding
-- one that took in the window before: until then that one counts what it took.
CREATE FUNCTION lockapi.limit_room(tat int8, started int8, span int8, used int8, before int8, slide int8,
                                   blocked_until int8, length int8, sliding bool, depth int8, now int8) RETURNS int8
    LANGUAGE sql IMMUTABLE
    AS $$
        SELECT CASE
            WHEN blocked_until OPERATOR(pg_catalog.>) now THEN 0
            WHEN length OPERATOR(pg_catalog.=) 0
            THEN depth OPERATOR(pg_catalog.-) greatest(0, tat OPERATOR(pg_catalog.-) now)
            WHEN started IS NULL OR now OPERATOR(pg_catalog.<) started
                 OR now OPERATOR(pg_catalog.>=) (started OPERATOR(pg_catalog.+) (2 OPERATOR(pg_catalog.*) span))
            THEN depth
            WHEN now OPERATOR(pg_catalog.<) (started OPERATOR(pg_catalog.+) greatest(span, length))
            THEN (depth OPERATOR(pg_catalog.-) used) OPERATOR(pg_catalog.-)
                 CASE WHEN sliding
                      THEN lockapi.limit_overlap(before, greatest(span, length), now OPERATOR(pg_catalog.-) started)
                      ELSE 0 END
            WHEN sliding
            THEN depth OPERATOR(pg_catalog.-)
                 lockapi.limit_overlap(used, greatest(length, slide),
                                       (now OPERATOR(pg_catalog.-) started)
                                       OPERATOR(pg_catalog.-) greatest(span, length))
            ELSE depth END
    $$;

COMMENT ON FUNCTION lockapi.limit_room(int8, int8, int8, int8, int8, int8, int8, int8, bool, int8, int8)
    IS 'What is left of a limit: nanoseconds, or permits of windows of a length.';

-- The two that follow are volatile, so they see what others have committed until they are called: who calls
-- them has locked the row of the limit.

-- When the first reservation of a limit expires, or when it did: one that was made and has expired while its
-- caller waited for the row is left for the next one who asks.
CREATE FUNCTION lockapi.next_expiry(the_namespace text, the_key text) RETURNS int8
    LANGUAGE sql VOLATILE
    AS $$
        SELECT r.expires
          FROM lockapi.rate_reservation AS r
         WHERE r.namespace OPERATOR(pg_catalog.=) the_namespace AND r.key OPERATOR(pg_catalog.=) the_key
         ORDER BY r.expires
         LIMIT 1
    $$;

COMMENT ON FUNCTION lockapi.next_expiry(text, text) IS 'When the first reservation of a limit expires, or did.';

-- Forgets all reservations of a limit.
CREATE FUNCTION lockapi.forget_reservations(the_namespace text, the_key text) RETURNS void
    LANGUAGE sql VOLATILE
    AS $$
        DELETE FROM lockapi.rate_reservation AS r
         WHERE r.namespace OPERATOR(pg_catalog.=) the_namespace AND r.key OPERATOR(pg_catalog.=) the_key
    $$;

COMMENT ON FUNCTION lockapi.forget_reservations(text, text) IS 'Forgets all reservations of a limit.';
