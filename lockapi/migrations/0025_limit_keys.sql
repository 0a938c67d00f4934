-- Jobs that are limited by a key besides their group (`Job::limit_by`).
--
-- The key is a header, so a job without one costs what it did, and it goes wherever the job goes. What is limited has a name: a key
-- has the limit, and the rate, of the group with that name, and the jobs of both count together. So there is nothing to set
-- besides, and a job that has only a key is in that group.

SET LOCAL search_path = pg_catalog, pg_temp;

-- Those that have a key other than their group; other jobs have no entry. Of each key those that are admitted are the last. A claim
-- changes none of its columns.
CREATE INDEX job_limit_key ON lockapi.job ((namespace || ''), (queue || ''), ((headers ->> 'limit-by') COLLATE "C"), due_at)
    WHERE coalesce(group_key <> (headers ->> 'limit-by'), false);

-- As before (see 0022_group_rates.sql), with the keys that jobs are limited by besides their groups.
--
-- Admits parked jobs of at most "many" groups, and at most four times as many jobs: those that are due, as far as
-- the limits and the rates of their groups, and of their keys, allow.
--
-- Promises: no more jobs of a group or a key are admitted than its limit, whoever calls this at the same time, and none where
-- the limit is 0. Each job that is admitted takes a permit of its group, and of its key, if this has a rate. A group has its next turn
-- after all others that have parked jobs which are due; where keys held some up, the next turn begins after the first group that got
-- room of a key, so that groups share it one after the other. In an ordered queue the job with the smallest number is next, and
-- while it is not due, has no room for its key, or somebody has its row locked, none is. In others as well, what has no room for its
-- key holds up its group; where jobs have keys, one whose row is locked is passed over, and nothing takes its place in the same turn.
-- Answers how many jobs were admitted, how many groups were looked at, and, if no job was admitted, when the next
-- one will be due, in 20 ms at least because it may have to wait for its group, or the next permit comes of a group or a key that has a
-- job which is due, in microseconds from now.
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
        stuck text;
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
                SELECT array_agg(p.id ORDER BY p.n), array_agg(p.name ORDER BY p.n), array_agg(p.key ORDER BY p.n)
                  INTO ids, picked, keys
                  FROM (SELECT h.id, h.key, g.name, g.n
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
                SELECT array_agg(p.id ORDER BY p.n, p.lane, p.due_at, p.id), array_agg(p.name ORDER BY p.n, p.lane, p.due_at, p.id),
                       array_agg(p.key ORDER BY p.n, p.lane, p.due_at, p.id)
                  INTO ids, picked, keys
                  FROM (SELECT k.id, k.key, k.due_at, k.lane, g.name, g.n
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
            IF keyed THEN
                last := picked[cardinality(picked)];
            END IF;
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
                CONTINUE WHEN picked[n] = stuck;
                own_place := array_position(free, picked[n]);
                key_place := array_position(free, keys[n]);
                IF rooms[own_place] <= 0 OR (keys[n] IS NOT NULL AND coalesce(rooms[key_place], 0) <= 0) THEN
                    stuck := picked[n];
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
                END IF;
                fit := fit || ids[n];
                fit_groups := fit_groups || picked[n];
            END LOOP;
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
        IF admitted > 0 OR looked >= many THEN
            INSERT INTO lockapi.queue_groups AS q (namespace, queue, turns, reached, swept)
            VALUES (of_namespace, of_queue, 1,
                    CASE WHEN stuck IS NOT NULL AND first_keyed IS NOT NULL THEN first_keyed
                         WHEN full_turn THEN last
                         ELSE names[looked] END,
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

-- As before (see 0014_headers.sql): a job that has only a key to be limited by is in the group of that name.
CREATE OR REPLACE FUNCTION lockapi.push_with_headers(
    queue text, name text, payload json, headers jsonb,
    namespace text DEFAULT 'default', priority text DEFAULT 'normal', delay interval DEFAULT '0',
    at timestamptz DEFAULT NULL, max_attempts int4 DEFAULT 20, ttl interval DEFAULT '0',
    group_key text DEFAULT NULL, unique_key text DEFAULT NULL, idempotency_key text DEFAULT NULL,
    notify bool DEFAULT true) RETURNS int8
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
    #variable_conflict use_column
    DECLARE
        never constant timestamptz := '20000-01-01 00:00:00+00';
        level constant int4 := array_position(ARRAY['urgent', 'high', 'normal', 'low'], push_with_headers.priority) - 1;
        most_seconds constant float8 := 3660 * 86400;
        -- Of months and days as well, whose length would depend on the date and the time zone.
        delay_seconds constant float8 := extract(epoch FROM push_with_headers.delay);
        ttl_seconds constant float8 := extract(epoch FROM push_with_headers.ttl);
        wrong text;
        due timestamptz;
        expires timestamptz;
        kept jsonb;
        lane text := push_with_headers.group_key;
        number int8;
        found_expired bool;
    BEGIN
        wrong := (SELECT format('the %s has %s bytes; allowed are 1 to 255 bytes', c.what, coalesce(octet_length(c.value), 0))
                    FROM (VALUES ('name of the queue', push_with_headers.queue, true), ('name', push_with_headers.name, true),
                                 ('group', push_with_headers.group_key, false), ('unique key', push_with_headers.unique_key, false),
                                 ('idempotency key', push_with_headers.idempotency_key, false)) AS c (what, value, needed)
                   WHERE coalesce(octet_length(c.value), CASE WHEN c.needed THEN 0 ELSE 1 END) NOT BETWEEN 1 AND 255
                   LIMIT 1);
        wrong := CASE
            WHEN wrong IS NOT NULL THEN wrong
            WHEN coalesce(octet_length(push_with_headers.namespace), 256) > 255
            THEN 'the namespace is NULL or has more than 255 bytes; allowed are at most 255 bytes'
            WHEN push_with_headers.payload IS NULL OR octet_length(push_with_headers.payload::text) > 16777216
            THEN 'the payload is NULL or has more than 16 MiB; allowed is one JSON value of at most 16777216 bytes'
            WHEN level IS NULL
            THEN format('a priority of %L; allowed are urgent, high, normal and low', push_with_headers.priority)
            WHEN delay_seconds NOT BETWEEN 0 AND most_seconds IS NOT FALSE
            THEN format('a delay of %s; allowed are 0 to 3660 days', coalesce(push_with_headers.delay::text, 'NULL'))
            WHEN ttl_seconds NOT BETWEEN 0 AND most_seconds IS NOT FALSE
            THEN format('a ttl of %s; allowed are 0, which means for ever, to 3660 days', coalesce(push_with_headers.ttl::text, 'NULL'))
            WHEN push_with_headers.at >= timestamptz '10000-01-01 00:00:00+00'
            THEN 'a time after the year 9999; allowed are earlier times'
            WHEN push_with_headers.max_attempts NOT BETWEEN 1 AND 1000000 IS NOT FALSE
            THEN format('max_attempts of %s; allowed are 1 to 1000000', coalesce(push_with_headers.max_attempts::text, 'NULL'))
            WHEN starts_with(push_with_headers.unique_key, 'task/')
            THEN format('the unique key %L; allowed are those that do not begin with task/, as those of runs of tasks do', push_with_headers.unique_key)
            WHEN push_with_headers.unique_key IS NOT NULL AND push_with_headers.idempotency_key IS NOT NULL
            THEN 'the job has a unique key and an idempotency key; allowed is one of them'
            WHEN jsonb_typeof(push_with_headers.headers) <> 'object'
            THEN format('the headers are a JSON %s; allowed is an object of texts', jsonb_typeof(push_with_headers.headers))
        END;
        IF wrong IS NULL AND push_with_headers.headers IS NOT NULL THEN
            SELECT (array_agg(c.wrong ORDER BY h.n) FILTER (WHERE c.wrong IS NOT NULL))[1],
                   jsonb_object_agg(lower(h.name COLLATE "C"), h.value)
              INTO wrong, kept
              FROM (SELECT e.key AS name, e.value, e.value #>> '{}' AS text, e.n,
                           count(*) OVER () AS many,
                           count(*) OVER (PARTITION BY lower(e.key COLLATE "C")) AS alike,
                           sum(octet_length(e.key) + octet_length(e.value #>> '{}')) OVER () AS bytes
                      FROM jsonb_each(push_with_headers.headers) WITH ORDINALITY AS e (key, value, n)) AS h
             CROSS JOIN LATERAL (SELECT CASE
                   WHEN h.many > 32
                   THEN format('%s headers; allowed are at most 32', h.many)
                   WHEN octet_length(h.name) NOT BETWEEN 1 AND 64
                   THEN format('the name of a header has %s bytes; allowed are 1 to 64 bytes of visible ASCII', octet_length(h.name))
                   WHEN h.name COLLATE "C" !~ '^[!-~]+$'
                   THEN format('the name of a header is %L; allowed are 1 to 64 bytes of visible ASCII', h.name)
                   WHEN h.alike > 1
                   THEN format('two headers are named %L; allowed is one, in whatever case', lower(h.name COLLATE "C"))
                   WHEN jsonb_typeof(h.value) <> 'string'
                   THEN format('the value of the header %L is a JSON %s; allowed are texts', h.name, jsonb_typeof(h.value))
                   WHEN octet_length(h.text) > 1024
                   THEN format('the value of the header %L has %s bytes; allowed are at most 1024 bytes', h.name, octet_length(h.text))
                   WHEN lower(h.name COLLATE "C") = 'limit-by' AND octet_length(h.text) NOT BETWEEN 1 AND 255
                   THEN format('the key of the limit has %s bytes; allowed are 1 to 255 bytes', octet_length(h.text))
                   WHEN h.bytes > 8192
                   THEN format('the headers have %s bytes of names and values; allowed are at most 8192', h.bytes)
               END AS wrong) AS c;
        END IF;
        IF wrong IS NOT NULL THEN
            RAISE EXCEPTION '%', wrong USING ERRCODE = 'invalid_parameter_value';
        END IF;
        lane := coalesce(lane, kept ->> 'limit-by');
        due := greatest(push_with_headers.at, statement_timestamp()) + delay_seconds * interval '1 second';
        expires := CASE WHEN ttl_seconds > 0 THEN due + ttl_seconds * interval '1 second' END;
        IF push_with_headers.notify THEN
            PERFORM pg_notify('lockapi', lockapi.advisory_key(push_with_headers.namespace, 'queue ' || push_with_headers.queue)::text);
        END IF;
        LOOP
            number := NULL;
            IF push_with_headers.idempotency_key IS NOT NULL THEN
                INSERT INTO lockapi.push_key AS k (namespace, queue, key, job)
                VALUES (push_with_headers.namespace, push_with_headers.queue, push_with_headers.idempotency_key, nextval('lockapi.job_seq'))
                ON CONFLICT DO NOTHING
                RETURNING k.job INTO number;
                IF NOT FOUND THEN
                    SELECT k.job INTO number FROM lockapi.push_key AS k
                     WHERE k.namespace = push_with_headers.namespace AND k.queue = push_with_headers.queue
                       AND k.key = push_with_headers.idempotency_key;
                    IF FOUND THEN
                        PERFORM pg_logical_emit_message(true, 'lockapi', '');
                        RETURN number;
                    END IF;
                    CONTINUE;
                END IF;
            ELSIF push_with_headers.unique_key IS NOT NULL THEN
                SELECT j.id, j.token IS NULL AND j.attempt = 0 AND coalesce(j.expires_at <= clock_timestamp(), false)
                  INTO number, found_expired
                  FROM lockapi.job AS j
                 WHERE j.namespace COLLATE "POSIX" = push_with_headers.namespace AND j.queue COLLATE "POSIX" = push_with_headers.queue
                   AND j.unique_key = push_with_headers.unique_key;
                IF FOUND AND NOT found_expired THEN
                    PERFORM pg_logical_emit_message(true, 'lockapi', '');
                    RETURN number;
                ELSIF FOUND THEN
                    UPDATE lockapi.job AS j
                       SET name = push_with_headers.name, payload = push_with_headers.payload, priority = level,
                           max_attempts = push_with_headers.max_attempts,
                           error = NULL, errors = NULL, expires_at = expires, group_key = lane, headers = kept,
                           run_at = CASE WHEN lane IS NULL THEN due ELSE never END,
                           due_at = CASE WHEN lane IS NOT NULL THEN due END
                     WHERE j.id = number AND j.token IS NULL AND j.attempt = 0
                       AND coalesce(j.expires_at <= clock_timestamp(), false);
                    IF FOUND THEN
                        RETURN number;
                    END IF;
                    CONTINUE;
                END IF;
            END IF;
            INSERT INTO lockapi.job AS j (id, run_at, due_at, group_key, created_at, max_attempts, priority, namespace, queue,
                                          unique_key, name, payload, expires_at, headers)
            VALUES (coalesce(number, nextval('lockapi.job_seq')),
                    CASE WHEN lane IS NULL THEN due ELSE never END,
                    CASE WHEN lane IS NOT NULL THEN due END, lane, statement_timestamp(),
                    push_with_headers.max_attempts, level, push_with_headers.namespace, push_with_headers.queue,
                    push_with_headers.unique_key, push_with_headers.name, push_with_headers.payload, expires, kept)
            ON CONFLICT (namespace COLLATE "POSIX", queue COLLATE "POSIX", unique_key) WHERE unique_key IS NOT NULL
            DO NOTHING
            RETURNING j.id INTO number;
            IF FOUND THEN
                RETURN number;
            END IF;
        END LOOP;
    END
    $$;
