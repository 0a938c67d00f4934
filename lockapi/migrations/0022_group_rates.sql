-- Rates of groups: how often a job of a group is admitted.
--
-- The permits of a group are taken where its jobs are admitted, one at a time for a queue, so nothing has to be locked, and
-- what somebody sees who admits is what the one before has left. Jobs that have no permit stay parked.

SET LOCAL search_path = pg_catalog, pg_temp;

ALTER TABLE lockapi.queue_groups
    ADD COLUMN permits int8, ADD COLUMN period int8, ADD COLUMN burst int8, ADD COLUMN step int8,
    ADD COLUMN swept text COLLATE "C" NOT NULL DEFAULT '',
    ADD CONSTRAINT queue_groups_rate CHECK (
        coalesce(permits, period, burst, step) IS NULL
        OR (permits > 0 AND period > 0 AND burst > 0 AND step > 0 AND burst <= 4000000000000000000 / step) IS TRUE);
COMMENT ON COLUMN lockapi.queue_groups.permits IS 'How many jobs of a group are admitted in a period; NULL: any number.';
COMMENT ON COLUMN lockapi.queue_groups.period IS 'The period, in nanoseconds.';
COMMENT ON COLUMN lockapi.queue_groups.burst IS 'How many are admitted at once after a time without any.';
COMMENT ON COLUMN lockapi.queue_groups.step IS 'The time between two permits, in nanoseconds.';
COMMENT ON COLUMN lockapi.queue_groups.swept IS 'The last group whose permits were looked at, to find those that have come back.';

ALTER TABLE lockapi.group_limit
    ALTER COLUMN most DROP NOT NULL,
    ADD COLUMN permits int8, ADD COLUMN period int8, ADD COLUMN burst int8, ADD COLUMN step int8,
    ADD CONSTRAINT group_limit_rate CHECK (
        coalesce(permits, period, burst, step) IS NULL
        OR (permits > 0 AND period > 0 AND burst > 0 AND step > 0 AND burst <= 4000000000000000000 / step) IS TRUE);
COMMENT ON COLUMN lockapi.group_limit.most IS 'How many of its jobs run at once at most, and no more than one where the queue is ordered; 0: it is paused; NULL: as in other groups.';
COMMENT ON COLUMN lockapi.group_limit.permits IS 'How many of its jobs are admitted in a period; NULL: as in other groups.';
COMMENT ON COLUMN lockapi.group_limit.period IS 'The period, in nanoseconds.';
COMMENT ON COLUMN lockapi.group_limit.burst IS 'How many are admitted at once after a time without any.';
COMMENT ON COLUMN lockapi.group_limit.step IS 'The time between two permits, in nanoseconds.';

-- A row whose time has passed means the same as no row. No index mentions what changes.
CREATE TABLE lockapi.group_rate (
    tat       int8             NOT NULL,
    at        int8             NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    queue     text COLLATE "C" NOT NULL,
    group_key text COLLATE "C" NOT NULL,
    CONSTRAINT group_rate_pkey PRIMARY KEY (namespace, queue, group_key)
) WITH (fillfactor = 50);

COMMENT ON TABLE lockapi.group_rate IS 'The permits of groups that have a rate; written by lockapi.admit() alone.';
COMMENT ON COLUMN lockapi.group_rate.tat IS 'The theoretical arrival time, as of "at", in nanoseconds since 1970.';
COMMENT ON COLUMN lockapi.group_rate.at IS 'When permits were last taken, in nanoseconds since 1970.';
COMMENT ON COLUMN lockapi.group_rate.namespace IS 'Namespace of the backend.';
COMMENT ON COLUMN lockapi.group_rate.queue IS 'Name of the queue.';
COMMENT ON COLUMN lockapi.group_rate.group_key IS 'The group.';

-- As before (see 0016_delayed_groups.sql), with the rates of groups.
--
-- Admits parked jobs of at most "many" groups, and at most four times as many jobs: those that are due, as far as
-- the limits and the rates of their groups allow.
--
-- Promises: no more jobs of a group are admitted than its limit, whoever calls this at the same time, and none of a
-- group whose own limit is 0. Each job that is admitted takes a permit of its group, if this has a rate. A group has its next turn after all others that have parked jobs which are due. In an
-- ordered queue the job with the smallest number is next, and while it is not due, or somebody has its row locked, none is.
-- Answers how many jobs were admitted, how many groups were looked at, and, if no job was admitted, when the next
-- one will be due, in 20 ms at least because it may have to wait for its group, or the next permit comes of a group that has a
-- job which is due, in microseconds from now.
-- Index: job_parked; job_parked_order in an ordered queue; job_admitted; job_parked_due for the next one; group_limit_pkey and
-- group_rate_pkey.
-- Race: one at a time for a queue, by an advisory lock that no name of a mutex has, because names have 255 bytes at
-- most. The statements that follow see what was committed before they begin, so also what the one before has admitted,
-- and what has ended since then. A job that is pushed, or ends, at the same time is seen by the next call. Under a
-- stricter isolation than READ COMMITTED they would see an older state: then the second that changes queue_groups fails.
-- Locks: it waits for the advisory lock, holding nothing, and for no row: those that are locked are skipped.
CREATE OR REPLACE FUNCTION lockapi.admit(of_namespace text, of_queue text, many int8)
    RETURNS TABLE (admitted int8, looked int8, next_due int8)
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
    AS $$
    DECLARE
        own lockapi.queue_groups;
        lanes int8[] := '{0,1,2,3}';
        part_size constant int8 := 256;
        names text[];
        free text[];
        rooms int8[];
        steps int8[];
        debts int8[];
        ids int8[];
        picked text[];
        last text;
        idle bool;
        swept_from text;
        swept_to text;
        moment timestamptz;
        instant int8;
        permit_in int8;
        set_back bool;
    BEGIN
        PERFORM pg_advisory_xact_lock(lockapi.advisory_key(of_namespace, repeat('#', 256) || 'groups ' || of_queue));
        moment := clock_timestamp();
        instant := lockapi.clock();
        SELECT q.* INTO own FROM lockapi.queue_groups AS q WHERE q.namespace = of_namespace AND q.queue = of_queue;
        own.most := coalesce(own.most, 1);
        own.turns := coalesce(own.turns, 0);
        own.reached := coalesce(own.reached, '');
        IF own.turns % 16 = 15 THEN
            lanes := '{3,2,1,0}';
        END IF;
        -- Parts of the index are read until a job is due in one, and up to its last group, which may have more jobs than
        -- the part: so neither many groups whose jobs are delayed nor a group with many such jobs take long.
        names := ARRAY(
            WITH RECURSIVE part (name, due, n) AS (
                SELECT own.reached COLLATE "C", false, 0
                UNION ALL
                SELECT o.name, o.due, p.n + o.due::int4
                  FROM part AS p
                 CROSS JOIN LATERAL (
                       SELECT coalesce(f.name, l.name) AS name,
                              f.name IS NOT NULL OR EXISTS (
                                  SELECT
                                    FROM unnest(lanes) AS lane (priority)
                                   CROSS JOIN LATERAL (
                                         SELECT
                                           FROM lockapi.job AS j
                                          WHERE j.namespace COLLATE "POSIX" = of_namespace AND j.queue COLLATE "POSIX" = of_queue
                                            AND j.group_key = l.name AND j.priority = lane.priority AND j.due_at <= moment
                                          LIMIT 1) AS d) AS due
                         FROM (SELECT (SELECT c.group_key
                                         FROM (SELECT j.group_key, j.due_at
                                                 FROM lockapi.job AS j
                                                WHERE j.namespace COLLATE "POSIX" = of_namespace AND j.queue COLLATE "POSIX" = of_queue
                                                  AND j.due_at IS NOT NULL AND j.group_key > p.name
                                                ORDER BY j.group_key
                                                LIMIT part_size) AS c
                                        WHERE c.due_at <= moment
                                        ORDER BY c.group_key
                                        LIMIT 1) AS name OFFSET 0) AS f
                        CROSS JOIN LATERAL (
                              SELECT CASE WHEN f.name IS NULL
                                          THEN (SELECT j.group_key
                                                  FROM lockapi.job AS j
                                                 WHERE j.namespace COLLATE "POSIX" = of_namespace AND j.queue COLLATE "POSIX" = of_queue
                                                   AND j.due_at IS NOT NULL AND j.group_key > p.name
                                                 ORDER BY j.group_key
                                                OFFSET part_size - 1
                                                 LIMIT 1) END AS name
                              OFFSET 0) AS l
                       OFFSET 0) AS o
                 WHERE p.n < many AND o.name IS NOT NULL
            )
            SELECT p.name FROM part AS p WHERE p.due ORDER BY p.n);
        IF cardinality(names) < many AND own.reached <> '' THEN
            names := names || ARRAY(
                WITH RECURSIVE part (name, due, n) AS (
                    SELECT '' COLLATE "C", false, cardinality(names)
                    UNION ALL
                    SELECT o.name, o.due, p.n + o.due::int4
                      FROM part AS p
                     CROSS JOIN LATERAL (
                           SELECT coalesce(f.name, l.name) AS name,
                                  f.name IS NOT NULL OR EXISTS (
                                      SELECT
                                        FROM unnest(lanes) AS lane (priority)
                                       CROSS JOIN LATERAL (
                                             SELECT
                                               FROM lockapi.job AS j
                                              WHERE j.namespace COLLATE "POSIX" = of_namespace AND j.queue COLLATE "POSIX" = of_queue
                                                AND j.group_key = l.name AND j.priority = lane.priority AND j.due_at <= moment
                                              LIMIT 1) AS d) AS due
                             FROM (SELECT (SELECT c.group_key
                                             FROM (SELECT j.group_key, j.due_at
                                                     FROM lockapi.job AS j
                                                    WHERE j.namespace COLLATE "POSIX" = of_namespace AND j.queue COLLATE "POSIX" = of_queue
                                                      AND j.due_at IS NOT NULL AND j.group_key > p.name AND j.group_key <= own.reached
                                                    ORDER BY j.group_key
                                                    LIMIT part_size) AS c
                                            WHERE c.due_at <= moment
                                            ORDER BY c.group_key
                                            LIMIT 1) AS name OFFSET 0) AS f
                            CROSS JOIN LATERAL (
                                  SELECT CASE WHEN f.name IS NULL
                                              THEN (SELECT j.group_key
                                                      FROM lockapi.job AS j
                                                     WHERE j.namespace COLLATE "POSIX" = of_namespace AND j.queue COLLATE "POSIX" = of_queue
                                                       AND j.due_at IS NOT NULL AND j.group_key > p.name AND j.group_key <= own.reached
                                                     ORDER BY j.group_key
                                                    OFFSET part_size - 1
                                                     LIMIT 1) END AS name
                                  OFFSET 0) AS l
                           OFFSET 0) AS o
                     WHERE p.n < many AND o.name IS NOT NULL
                )
                SELECT p.name FROM part AS p WHERE p.due ORDER BY p.n);
        END IF;
        -- Those that have room, how much, and what they owe of their rate: what was taken last, as far as this rate can owe so
        -- much, less the time since then. Where the clock was set back since then, that time is moved back as well.
        SELECT array_agg(r.name ORDER BY r.n) FILTER (WHERE r.room > 0),
               array_agg(r.room ORDER BY r.n) FILTER (WHERE r.room > 0),
               array_agg(r.step ORDER BY r.n) FILTER (WHERE r.room > 0),
               array_agg(r.debt ORDER BY r.n) FILTER (WHERE r.room > 0),
               min(r.permit_in), bool_or(r.taken_at > instant)
          INTO free, rooms, steps, debts, permit_in, set_back
          FROM (SELECT o.n, o.name, o.step, p.debt, t.rate[2] AS taken_at, least(o.room, (o.burst * o.step - p.debt) / o.step) AS room,
                       CASE WHEN o.room > 0 AND p.debt > (o.burst - 1) * o.step
                            THEN (p.debt - (o.burst - 1) * o.step + 999) / 1000 END AS permit_in
                  FROM (SELECT g.n, g.name, l.burst, l.step, l.most - (
                               SELECT count(*)
                                 FROM (SELECT
                                         FROM lockapi.job AS j
                                        WHERE j.namespace COLLATE "POSIX" = of_namespace AND j.queue COLLATE "POSIX" = of_queue
                                          AND j.group_key = g.name AND j.due_at IS NULL
                                        LIMIT l.most) AS a) AS room
                          FROM unnest(names) WITH ORDINALITY AS g (name, n)
                         CROSS JOIN LATERAL (
                               SELECT (SELECT ARRAY[o.most, o.burst, o.step] FROM lockapi.group_limit AS o
                                        WHERE o.namespace = of_namespace AND o.queue = of_queue
                                          AND o.group_key = g.name) AS own
                               OFFSET 0) AS x
                         CROSS JOIN LATERAL (
                               SELECT least(coalesce(x.own[1], own.most), CASE WHEN own.ordered THEN 1 END) AS most,
                                      CASE WHEN x.own[3] IS NULL THEN own.burst ELSE x.own[2] END AS burst,
                                      coalesce(x.own[3], own.step) AS step
                               OFFSET 0) AS l
                        OFFSET 0) AS o
                 CROSS JOIN LATERAL (
                       SELECT CASE WHEN o.step IS NOT NULL AND o.room > 0
                                   THEN (SELECT ARRAY[k.tat, k.at]
                                           FROM lockapi.group_rate AS k
                                          WHERE k.namespace = of_namespace AND k.queue = of_queue
                                            AND k.group_key = o.name) END AS rate
                       OFFSET 0) AS t
                 CROSS JOIN LATERAL (
                       SELECT CASE WHEN o.step IS NULL OR o.room <= 0 THEN NULL
                                   WHEN t.rate IS NULL THEN 0
                                   ELSE greatest(least(t.rate[1] - t.rate[2], o.burst * o.step)
                                                     - greatest(instant - t.rate[2], 0), 0) END AS debt
                       OFFSET 0) AS p
                OFFSET 0) AS r;
        -- What is read is read and locked in one statement, and checked again on the locked row.
        IF own.ordered THEN
            SELECT array_agg(p.id), array_agg(p.name), (array_agg(p.name ORDER BY p.n DESC))[1] INTO ids, picked, last
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
            SELECT array_agg(p.id), array_agg(p.name), (array_agg(p.name ORDER BY p.n DESC))[1] INTO ids, picked, last
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
        IF set_back THEN
            UPDATE lockapi.group_rate AS r SET tat = r.tat - (r.at - instant), at = instant
             WHERE r.ctid = ANY (ARRAY(
                       SELECT o.place
                         FROM unnest(names) AS g (name)
                        CROSS JOIN LATERAL (
                              SELECT k.ctid AS place
                                FROM lockapi.group_rate AS k
                               WHERE k.namespace = of_namespace AND k.queue = of_queue AND k.group_key = g.name
                                 AND k.at > instant
                              OFFSET 0) AS o));
        END IF;
        IF admitted > 0 AND array_remove(steps, NULL) <> '{}' THEN
            INSERT INTO lockapi.group_rate AS r (tat, at, namespace, queue, group_key)
            SELECT instant + max(s.debt) + count(*) * max(s.step), instant, of_namespace, of_queue, s.name
              FROM unnest(picked) AS u (name)
              JOIN ROWS FROM (unnest(free), unnest(steps), unnest(debts)) AS s (name, step, debt) ON s.name = u.name
             WHERE s.step IS NOT NULL
             GROUP BY s.name
            ON CONFLICT (namespace, queue, group_key) DO UPDATE SET tat = EXCLUDED.tat, at = EXCLUDED.at;
        END IF;
        IF admitted > 0 THEN
            -- Twice as many rows are looked at as were written, so those that say nothing do not pile up.
            swept_from := coalesce(own.swept, '');
            SELECT max(p.group_key), bool_or(greatest(p.tat, p.at) < instant - 60000000000),
                   CASE WHEN count(*) = 2 * admitted + 16 THEN max(p.group_key) END
              INTO swept_to, idle, own.swept
              FROM (SELECT r.group_key, r.tat, r.at
                      FROM lockapi.group_rate AS r
                     WHERE r.namespace = of_namespace AND r.queue = of_queue AND r.group_key > swept_from
                     ORDER BY r.group_key
                     LIMIT 2 * admitted + 16) AS p;
            IF idle THEN
                -- By a range: a list would be compared with all rows of the queue where statistics say that there are few.
                DELETE FROM lockapi.group_rate AS r
                 WHERE r.namespace = of_namespace AND r.queue = of_queue AND r.group_key > swept_from AND r.group_key <= swept_to
                   AND greatest(r.tat, r.at) < instant - 60000000000;
            END IF;
        END IF;
        IF admitted > 0 OR looked >= many THEN
            INSERT INTO lockapi.queue_groups AS q (namespace, queue, turns, reached, swept)
            VALUES (of_namespace, of_queue, 1, CASE WHEN admitted < many * 4 THEN names[looked] ELSE last END,
                    coalesce(own.swept, ''))
            ON CONFLICT (namespace, queue) DO UPDATE
               SET turns = q.turns + 1, reached = EXCLUDED.reached, swept = EXCLUDED.swept;
        END IF;
        IF admitted = 0 THEN
            next_due := least(permit_in, (
                         SELECT greatest((extract(epoch FROM j.due_at - moment) * 1000000)::int8, 20000)
                           FROM lockapi.job AS j
                          WHERE (j.namespace || '') = of_namespace AND (j.queue || '') = of_queue
                            AND (j.due_at > '-infinity'::timestamptz) IS TRUE AND j.due_at > moment
                          ORDER BY j.due_at
                          LIMIT 1));
        END IF;
        RETURN NEXT;
    END
    $$;
