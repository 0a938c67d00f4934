-- Groups whose jobs are not due yet.
--
-- Jobs that are pushed for later, or wait for their next attempt, had turns: with a hundred thousand such groups a job
-- that was due waited for half a minute until those before its group had been looked at. Now they are passed over, and the
-- time at which the next one is due is found by an index of its own.

SET LOCAL search_path = pg_catalog, pg_temp;

-- Its condition is said differently from those of the other indexes of parked jobs, so that none fits in its place.
CREATE INDEX job_parked_due ON lockapi.job ((namespace || ''), (queue || ''), due_at)
    WHERE (due_at > '-infinity'::timestamptz) IS TRUE;

-- As before (see 0015_pauses.sql); it looks only at groups that have a job which is due, and the next one that will be due
-- is that of the queue, which may have to wait for its group.
--
-- Admits parked jobs of at most "many" groups, and at most four times as many jobs: those that are due, as far as
-- the limits of their groups allow.
--
-- Promises: no more jobs of a group are admitted than its limit, whoever calls this at the same time, and none of a
-- group whose own limit is 0. A group has its next turn after all others that have parked jobs which are due. In an
-- ordered queue the job with the smallest number is next, and while it is not due, or somebody has its row locked, none is.
-- Answers how many jobs were admitted, how many groups were looked at, and, if no job was admitted, when the next
-- one will be due, in microseconds from now.
-- Index: job_parked; job_parked_order in an ordered queue; job_admitted; job_parked_due for the next one.
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
                       SELECT least(coalesce((SELECT o.most FROM lockapi.group_limit AS o
                                               WHERE o.namespace = of_namespace AND o.queue = of_queue
                                                 AND o.group_key = g.name), own.most),
                                    CASE WHEN own.ordered THEN 1 END) AS most
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
        IF admitted = 0 THEN
            next_due := (SELECT (extract(epoch FROM j.due_at - moment) * 1000000)::int8
                           FROM lockapi.job AS j
                          WHERE (j.namespace || '') = of_namespace AND (j.queue || '') = of_queue
                            AND (j.due_at > '-infinity'::timestamptz) IS TRUE AND j.due_at > moment
                          ORDER BY j.due_at
                          LIMIT 1);
        END IF;
        RETURN NEXT;
    END
    $$;
