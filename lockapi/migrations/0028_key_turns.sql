-- A turn for each key that jobs of groups are limited by, and a bound for what an admission reads.
--
-- With one turn for all keys, of the groups that share one some were passed over each time where another key was given in between.

SET LOCAL search_path = pg_catalog, pg_temp;

-- By key, the group that it has admitted last; of those keys that had no room for all.
ALTER TABLE lockapi.queue_groups ADD COLUMN key_turns jsonb;

-- As before (see 0025_limit_keys.sql), with a turn for each key, and a bound for what it reads.
--
-- Admits parked jobs of at most "many" groups, and at most four times as many jobs: those that are due, as far as
-- the limits and the rates of their groups, and of their keys, allow.
--
-- Promises: no more jobs of a group or a key are admitted than its limit, whoever calls this at the same time, and none where
-- the limit is 0. Each job that is admitted takes a permit of its group, and of its key, if this has a rate. A group has its next turn
-- after all others that have parked jobs which are due. Groups share a key one after the other, whatever other keys there are: a key
-- that had no room for all begins, the next time, after the group that it has admitted last. In an ordered queue the job with the
-- smallest number is next, and while it is not due, has no room for its key, or somebody has its row locked, none is. In others as
-- well, what has no room for its key holds up its group; where jobs have keys, one whose row is locked is passed over, and nothing
-- takes its place in the same turn. It reads some 8,000 parked jobs which are not due, and goes on behind them the next time.
-- Answers how many jobs were admitted, how many groups were looked at, and, if no job was admitted, when the next
-- one will be due, in 20 ms at least because it may have to wait for its group, or the next permit comes of a group or a key that has a
-- job which is due, in microseconds from now. Where others are due behind what it has read, it answers as if it had looked at "many";
-- where they may be, that the next one will be due in 250 ms at most.
-- Index: job_parked; job_parked_order in an ordered queue; job_admitted and job_limit_key; job_parked_due for the next one;
-- group_limit_pkey and group_rate_pkey.
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
        most_parts constant int8 := 32;
        most_due constant int8 := 1024;
        parts int8;
        read_to text;
        was_cut bool;
        cut_off bool := false;
        unsure bool := false;
        names text[];
        free text[];
        rooms int8[];
        steps int8[];
        debts int8[];
        ids int8[];
        picked text[];
        keys text[];
        part text[];
        groups_free text[];
        groups_steps int8[];
        groups_debts int8[];
        next_permit int8;
        moved_back bool;
        keyed bool;
        of_keys bool := false;
        full_turn bool;
        stuck text[] := '{}';
        missed text[] := '{}';
        served jsonb := '{}';
        has_turned bool := false;
        first_keyed text;
        fit int8[] := '{}';
        fit_groups text[] := '{}';
        fit_keys text[] := '{}';
        own_place int4;
        key_place int4;
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
        -- the part: so a group with many delayed jobs does not take long. Nor do many such groups: so many parts are read, and the others
        -- the next time.
        WITH RECURSIVE part (name, due, n, nth, idle) AS (
                SELECT own.reached COLLATE "C", false, 0, 0, 0::int8
                UNION ALL
                SELECT o.name, o.due, p.n + o.due::int4, p.nth + 1, p.idle + (NOT o.due)::int4
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
                 WHERE p.n < many AND p.idle < most_parts AND o.name IS NOT NULL
        )
        SELECT coalesce(array_agg(p.name ORDER BY p.nth) FILTER (WHERE p.due), '{}'), (array_agg(p.name ORDER BY p.nth DESC))[1], max(p.idle)
          INTO names, read_to, parts
          FROM part AS p;
        IF cardinality(names) < many AND parts < most_parts AND own.reached <> '' THEN
            WITH RECURSIVE part (name, due, n, nth, idle) AS (
                    SELECT '' COLLATE "C", false, cardinality(names), 0, parts
                    UNION ALL
                    SELECT o.name, o.due, p.n + o.due::int4, p.nth + 1, p.idle + (NOT o.due)::int4
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
                     WHERE p.n < many AND p.idle < most_parts AND o.name IS NOT NULL
            )
            SELECT names || coalesce(array_agg(p.name ORDER BY p.nth) FILTER (WHERE p.due), '{}'),
                   (array_agg(p.name ORDER BY p.nth DESC))[1], max(p.idle)
              INTO names, read_to, parts
              FROM part AS p;
        END IF;
        was_cut := parts >= most_parts AND cardinality(names) < many;
        IF was_cut THEN
            -- Among some of those that are due, whether there are others than these; and whether there may be more than those.
            SELECT coalesce(bool_or(d.group_key <> ALL (names)), false), count(*) = most_due
              INTO cut_off, unsure
              FROM (SELECT j.group_key
                      FROM lockapi.job AS j
                     WHERE (j.namespace || '') = of_namespace AND (j.queue || '') = of_queue
                       AND (j.due_at > '-infinity'::timestamptz) IS TRUE AND j.due_at <= moment
                     ORDER BY j.due_at
                     LIMIT most_due) AS d;
        END IF;
        looked := cardinality(names);
        part := names;
        keyed := EXISTS (SELECT
                           FROM lockapi.job AS j
                          WHERE (j.namespace || '') = of_namespace AND (j.queue || '') = of_queue
                            AND (j.headers ->> 'limit-by') COLLATE "C" >= ''
                            AND coalesce(j.group_key <> (j.headers ->> 'limit-by'), false));
        LOOP
            -- Those that have room, how much, and what they owe of their rate: what was taken last, as far as this rate can owe so
            -- much, less the time since then. Where the clock was set back since then, that time is moved back as well.
            SELECT array_agg(r.name ORDER BY r.n) FILTER (WHERE r.room > 0),
                   array_agg(r.room ORDER BY r.n) FILTER (WHERE r.room > 0),
                   array_agg(r.step ORDER BY r.n) FILTER (WHERE r.room > 0),
                   array_agg(r.debt ORDER BY r.n) FILTER (WHERE r.room > 0),
                   min(r.permit_in), bool_or(r.taken_at > instant)
              INTO free, rooms, steps, debts, next_permit, moved_back
              FROM (SELECT o.n, o.name, o.step, p.debt, t.rate[2] AS taken_at, least(o.room, (o.burst * o.step - p.debt) / o.step) AS room,
                           CASE WHEN o.room > 0 AND p.debt > (o.burst - 1) * o.step
                                THEN (p.debt - (o.burst - 1) * o.step + 999) / 1000 END AS permit_in
                      FROM (SELECT g.n, g.name, l.burst, l.step,
                                   least(l.most - u.of_group - CASE WHEN keyed THEN (
                                             SELECT count(*)
                                               FROM (SELECT
                                                       FROM lockapi.job AS j
                                                      WHERE (j.namespace || '') = of_namespace AND (j.queue || '') = of_queue
                                                        AND (j.headers ->> 'limit-by') COLLATE "C" = g.name
                                                        AND j.due_at IS NULL AND coalesce(j.group_key <> (j.headers ->> 'limit-by'), false)
                                                      LIMIT l.most) AS a) ELSE 0 END,
                                         CASE WHEN own.ordered AND NOT of_keys THEN 1 - u.of_group END) AS room
                              FROM unnest(part) WITH ORDINALITY AS g (name, n)
                             CROSS JOIN LATERAL (
                                   SELECT (SELECT ARRAY[o.most, o.burst, o.step] FROM lockapi.group_limit AS o
                                            WHERE o.namespace = of_namespace AND o.queue = of_queue
                                              AND o.group_key = g.name) AS own
                                   OFFSET 0) AS x
                             CROSS JOIN LATERAL (
                                   SELECT coalesce(x.own[1], own.most) AS most,
                                          CASE WHEN x.own[3] IS NULL THEN own.burst ELSE x.own[2] END AS burst,
                                          coalesce(x.own[3], own.step) AS step
                                   OFFSET 0) AS l
                             CROSS JOIN LATERAL (
                                   SELECT count(*) AS of_group
                                     FROM (SELECT
                                             FROM lockapi.job AS j
                                            WHERE j.namespace COLLATE "POSIX" = of_namespace AND j.queue COLLATE "POSIX" = of_queue
                                              AND j.group_key = g.name AND j.due_at IS NULL
                                            LIMIT l.most) AS a) AS u
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
            permit_in := least(permit_in, next_permit);
            set_back := coalesce(set_back, false) OR coalesce(moved_back, false);
            EXIT WHEN of_keys;
            full_turn := false;
            -- What is read is read and locked in one statement, and checked again on the locked row. Where jobs have keys,
            -- few of those that are next may have room for them: then they are locked afterwards, in turn, and so few of a group are read
            -- that all groups are.
            IF NOT keyed AND own.ordered THEN
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
                                  AND coalesce(j.group_key <> (j.headers ->> 'limit-by'), false) IS NOT TRUE
                                LIMIT 1
                                  FOR UPDATE OF j SKIP LOCKED) AS k
                         WHERE h.due_at <= moment) AS p;
            ELSIF NOT keyed THEN
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
                                         AND coalesce(j.group_key <> (j.headers ->> 'limit-by'), false) IS NOT TRUE
                                       ORDER BY j.due_at, j.id + 0
                                       LIMIT g.room
                                         FOR UPDATE OF j SKIP LOCKED) AS o
                                LIMIT g.room) AS k
                         LIMIT many * 4) AS p;
            ELSIF own.ordered THEN
                SELECT array_agg(p.id ORDER BY p.behind, p.name), array_agg(p.name ORDER BY p.behind, p.name),
                       array_agg(p.key ORDER BY p.behind, p.name), (array_agg(p.name ORDER BY p.n DESC))[1]
                  INTO ids, picked, keys, last
                  FROM (SELECT h.id, h.key, g.name COLLATE "C" AS name, g.n,
                               g.name COLLATE "C" <= coalesce(own.key_turns ->> h.key, own.reached) AS behind
                          FROM unnest(free) WITH ORDINALITY AS g (name, n)
                         CROSS JOIN LATERAL (
                               SELECT j.id, j.due_at, CASE WHEN j.group_key <> (j.headers ->> 'limit-by') THEN j.headers ->> 'limit-by' END AS key
                                 FROM lockapi.job AS j
                                WHERE (j.namespace || '') = of_namespace AND (j.queue || '') = of_queue
                                  AND (j.group_key || '') = g.name AND coalesce(j.due_at <= 'infinity'::timestamptz, false)
                                ORDER BY j.id + 0
                                LIMIT 1) AS h
                         WHERE h.due_at <= moment) AS p;
            ELSE
                -- First the next one of each group, then the second ones.
                SELECT array_agg(p.id ORDER BY p.nth, p.behind, p.name), array_agg(p.name ORDER BY p.nth, p.behind, p.name),
                       array_agg(p.key ORDER BY p.nth, p.behind, p.name), (array_agg(p.name ORDER BY p.n DESC))[1]
                  INTO ids, picked, keys, last
                  FROM (SELECT k.id, k.key, g.name COLLATE "C" AS name, g.n,
                               row_number() OVER (PARTITION BY g.n ORDER BY k.lane, k.due_at, k.id) AS nth,
                               g.name COLLATE "C" <= coalesce(own.key_turns ->> k.key, own.reached) AS behind
                          FROM ROWS FROM (unnest(free), unnest(rooms)) WITH ORDINALITY AS g (name, room, n)
                         CROSS JOIN LATERAL (
                               SELECT o.id, o.key, o.due_at, lane.n AS lane
                                 FROM unnest(lanes) WITH ORDINALITY AS lane (priority, n)
                                CROSS JOIN LATERAL (
                                      SELECT j.id, j.due_at, CASE WHEN j.group_key <> (j.headers ->> 'limit-by') THEN j.headers ->> 'limit-by' END AS key
                                        FROM lockapi.job AS j
                                       WHERE j.namespace COLLATE "POSIX" = of_namespace AND j.queue COLLATE "POSIX" = of_queue
                                         AND j.group_key = g.name AND j.priority = lane.priority AND j.due_at <= moment
                                       ORDER BY j.due_at, j.id + 0
                                       LIMIT least(g.room, 4)) AS o
                                LIMIT least(g.room, 4)) AS k
                         LIMIT many * 4) AS p;
            END IF;
            full_turn := cardinality(ids) >= many * 4;
            -- Then the room of the keys that jobs are limited by besides, if there are any.
            EXIT WHEN NOT keyed OR ids IS NULL;
            groups_free := free;
            groups_steps := steps;
            groups_debts := debts;
            of_keys := true;
            part := ARRAY(SELECT DISTINCT u.key FROM unnest(keys) AS u (key) WHERE u.key IS NOT NULL ORDER BY u.key);
        END LOOP;
        IF of_keys THEN
            -- What has no room for its key holds up its group. A key is shared by groups, and what a key has given to the jobs of one
            -- group is missed by those of another, and by the group of the same name.
            FOR n IN 1 .. cardinality(ids) LOOP
                CONTINUE WHEN picked[n] = ANY (stuck);
                own_place := array_position(free, picked[n]);
                key_place := array_position(free, keys[n]);
                IF rooms[own_place] <= 0 OR (keys[n] IS NOT NULL AND coalesce(rooms[key_place], 0) <= 0) THEN
                    stuck := stuck || picked[n];
                    IF keys[n] IS NOT NULL AND coalesce(rooms[key_place], 0) <= 0 THEN
                        missed := missed || keys[n];
                    END IF;
                    CONTINUE;
                END IF;
                PERFORM
                   FROM lockapi.job AS j
                  WHERE j.id = ids[n] AND j.group_key COLLATE "POSIX" = picked[n] AND (j.due_at <= moment) IS TRUE
                    AND CASE WHEN j.group_key <> (j.headers ->> 'limit-by') THEN j.headers ->> 'limit-by' END IS NOT DISTINCT FROM keys[n]
                  LIMIT 1
                    FOR UPDATE OF j SKIP LOCKED;
                CONTINUE WHEN NOT FOUND;
                IF own_place IS NOT NULL THEN
                    rooms[own_place] := rooms[own_place] - 1;
                END IF;
                IF keys[n] IS NOT NULL THEN
                    rooms[key_place] := rooms[key_place] - 1;
                    first_keyed := coalesce(first_keyed, picked[n]);
                    fit_keys := fit_keys || keys[n];
                    served := served || jsonb_build_object(keys[n], picked[n]);
                END IF;
                fit := fit || ids[n];
                fit_groups := fit_groups || picked[n];
            END LOOP;
            -- Of keys without room for all, who had it last; of many keys those of this time.
            SELECT coalesce(CASE WHEN (SELECT count(*) FROM jsonb_object_keys(own.key_turns)) <= 1000 THEN own.key_turns END, '{}')
                       || jsonb_object_agg(s.key, s.value)
              INTO served
              FROM jsonb_each(served) AS s
             WHERE s.key = ANY (missed);
            has_turned := served IS NOT NULL;
            own.key_turns := coalesce(served, own.key_turns);
            ids := fit;
            picked := fit_groups || fit_keys;
            names := names || part;
            free := groups_free || free;
            steps := groups_steps || steps;
            debts := groups_debts || debts;
        END IF;
        admitted := coalesce(cardinality(ids), 0);
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
              JOIN (SELECT DISTINCT f.name, f.step, f.debt
                      FROM ROWS FROM (unnest(free), unnest(steps), unnest(debts)) AS f (name, step, debt)) AS s ON s.name = u.name
             WHERE s.step IS NOT NULL
             GROUP BY s.name
            ON CONFLICT (namespace, queue, group_key) DO UPDATE SET tat = EXCLUDED.tat, at = EXCLUDED.at;
        END IF;
        IF admitted > 0 THEN
            -- Twice as many rows are looked at as were written, so those that say nothing do not pile up.
            swept_from := coalesce(own.swept, '');
            SELECT max(p.group_key), bool_or(greatest(p.tat, p.at) < instant - 60000000000),
                   CASE WHEN count(*) = 2 * cardinality(picked) + 16 THEN max(p.group_key) END
              INTO swept_to, idle, own.swept
              FROM (SELECT r.group_key, r.tat, r.at
                      FROM lockapi.group_rate AS r
                     WHERE r.namespace = of_namespace AND r.queue = of_queue AND r.group_key > swept_from
                     ORDER BY r.group_key
                     LIMIT 2 * cardinality(picked) + 16) AS p;
            IF idle THEN
                -- By a range: a list would be compared with all rows of the queue where statistics say that there are few.
                DELETE FROM lockapi.group_rate AS r
                 WHERE r.namespace = of_namespace AND r.queue = of_queue AND r.group_key > swept_from AND r.group_key <= swept_to
                   AND greatest(r.tat, r.at) < instant - 60000000000;
            END IF;
        END IF;
        IF admitted > 0 OR looked >= many OR cut_off OR unsure THEN
            INSERT INTO lockapi.queue_groups AS q (namespace, queue, turns, reached, swept, key_turns)
            VALUES (of_namespace, of_queue, 1,
                    CASE WHEN stuck <> '{}' AND first_keyed IS NOT NULL AND (looked >= many OR cut_off) THEN first_keyed
                         WHEN full_turn THEN last
                         WHEN was_cut THEN read_to
                         ELSE names[looked] END,
                    coalesce(own.swept, ''), CASE WHEN has_turned THEN own.key_turns END)
            ON CONFLICT (namespace, queue) DO UPDATE
               SET turns = q.turns + 1, reached = EXCLUDED.reached, swept = EXCLUDED.swept,
                   key_turns = CASE WHEN has_turned THEN EXCLUDED.key_turns WHEN keyed THEN q.key_turns END;
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
        IF cut_off OR unsure THEN
            next_due := least(next_due, 250000);
        END IF;
        IF cut_off THEN
            looked := greatest(looked, many);
        END IF;
        RETURN NEXT;
    END
    $$;
