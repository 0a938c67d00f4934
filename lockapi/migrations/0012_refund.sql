-- Refunds share what is replenished. What was taken at some time and is refunded later has been replenished meanwhile,
-- in whole or in part, and that part is not refunded. But an instant replenishes one permit, not one of each that is
-- open: what was withheld from one refund is not withheld from the next.
--
-- So a row notes a time without a gap, and every instant of it was withheld from some refund. A refund loses as much
-- as has passed since it was taken and is not in there, and at most all of it; what it lost is added. It is added at
-- the earliest place: that is where the fewest of those that are refunded later begin, so a limit never admits more
-- than if what was refunded had never been taken.

SET LOCAL search_path = pg_catalog, pg_temp;

ALTER TABLE lockapi.rate_limit
    ADD COLUMN withheld_from int8 NOT NULL DEFAULT 0,
    ADD COLUMN withheld      int8 NOT NULL DEFAULT 0;

ALTER TABLE lockapi.rate_limit ADD CONSTRAINT rate_limit_withheld CHECK (
    withheld_from BETWEEN -4000000000000000000 AND 4000000000000000000
    AND withheld BETWEEN 0 AND 316224000000000000) NOT VALID;

COMMENT ON COLUMN lockapi.rate_limit.withheld_from IS 'Beginning of the time that was withheld from refunds.';
COMMENT ON COLUMN lockapi.rate_limit.withheld IS 'Length of the time that was withheld from refunds: it is not withheld again.';

-- How much of what was replenished since a time is to be withheld from a refund: what was not withheld yet.
CREATE FUNCTION lockapi.limit_replenished(since int8, withheld_from int8, withheld int8, now int8) RETURNS int8
    LANGUAGE sql IMMUTABLE
    AS $$
        SELECT greatest(0, (now OPERATOR(pg_catalog.-) since)
                           OPERATOR(pg_catalog.-)
                           greatest(0, least(withheld_from OPERATOR(pg_catalog.+) withheld, now)
                                       OPERATOR(pg_catalog.-) greatest(withheld_from, since)))
    $$;

COMMENT ON FUNCTION lockapi.limit_replenished(int8, int8, int8, int8)
    IS 'How much of what was replenished since a time was not withheld from a refund yet.';

-- The time that was withheld, after more is withheld of what was replenished since a time. What does not touch the
-- time that is known begins a new one, unless it is earlier and shorter. Ten years of it are kept, the latest ones.
CREATE FUNCTION lockapi.limit_withheld(withheld_from int8, withheld int8, since int8, more int8) RETURNS int8[]
    LANGUAGE sql IMMUTABLE
    AS $$
        SELECT ARRAY[k.start OPERATOR(pg_catalog.+) (k.length OPERATOR(pg_catalog.-) least(k.length, 316224000000000000)),
                     least(k.length, 316224000000000000)]
          FROM (SELECT CASE WHEN j.joins THEN least(withheld_from, since) WHEN j.keeps THEN withheld_from ELSE since END
                           AS start,
                       CASE WHEN j.joins THEN withheld OPERATOR(pg_catalog.+) more WHEN j.keeps THEN withheld ELSE more END
                           AS length
                  FROM (SELECT coalesce(since OPERATOR(pg_catalog.<=) (withheld_from OPERATOR(pg_catalog.+) withheld)
                                        AND ((since OPERATOR(pg_catalog.+) withheld) OPERATOR(pg_catalog.+) more)
                                            OPERATOR(pg_catalog.>=) withheld_from, false) AS joins,
                               coalesce(more OPERATOR(pg_catalog.=) 0
                                        OR (since OPERATOR(pg_catalog.<) withheld_from
                                            AND more OPERATOR(pg_catalog.<) withheld), true) AS keeps) AS j) AS k
    $$;

COMMENT ON FUNCTION lockapi.limit_withheld(int8, int8, int8, int8)
    IS 'Beginning and length of the time that was withheld from refunds, after more is withheld.';
