-- Limits of queues: how many jobs of a queue run at once in all programs, and how often one is claimed.
--
-- A limited queue has a row, which also notes the deliveries that hold a place. The row of the job is the truth: a place is
-- taken while the job has that token and its lease runs. So nothing has to be given back, and whoever dies, or answers
-- late, leaves the place with its lease.

SET LOCAL search_path = pg_catalog, pg_temp;

CREATE TABLE lockapi.queue_limit (
    adopts_until timestamptz      NOT NULL DEFAULT '-infinity',
    changed_at   timestamptz      NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    most         int8,
    permits      int8,
    period       int8,
    burst        int8,
    step         int8,
    tat          int8             NOT NULL DEFAULT 0,
    at           int8             NOT NULL DEFAULT 0,
    ids          int8[]           NOT NULL DEFAULT '{}',
    tokens       int8[]           NOT NULL DEFAULT '{}',
    namespace    text COLLATE "C" NOT NULL,
    queue        text COLLATE "C" NOT NULL,
    name         text COLLATE "C" NOT NULL DEFAULT '',
    CONSTRAINT queue_limit_pkey PRIMARY KEY (namespace, queue, name),
    CONSTRAINT queue_limit_rate CHECK (
        coalesce(permits, period, burst, step) IS NULL
        OR (permits > 0 AND period > 0 AND burst > 0 AND step > 0 AND burst <= 4000000000000000000 / step) IS TRUE)
) WITH (fillfactor = 50);

COMMENT ON TABLE lockapi.queue_limit IS 'How many jobs of a queue run at once, and how often one is claimed.';
COMMENT ON COLUMN lockapi.queue_limit.adopts_until IS 'Until when claims, and the first one after it, also count jobs that were claimed before there was a limit; -infinity: that is done.';
COMMENT ON COLUMN lockapi.queue_limit.changed_at IS 'When it was last set.';
COMMENT ON COLUMN lockapi.queue_limit.most IS 'How many jobs run at once at most; NULL: any number.';
COMMENT ON COLUMN lockapi.queue_limit.permits IS 'How many jobs are claimed in a period; NULL: any number.';
COMMENT ON COLUMN lockapi.queue_limit.period IS 'The period, in nanoseconds.';
COMMENT ON COLUMN lockapi.queue_limit.burst IS 'How many are claimed at once after a time without claims.';
COMMENT ON COLUMN lockapi.queue_limit.step IS 'The time between two permits, in nanoseconds.';
COMMENT ON COLUMN lockapi.queue_limit.tat IS 'The theoretical arrival time, as of "at", in nanoseconds since 1970.';
COMMENT ON COLUMN lockapi.queue_limit.at IS 'When permits were last taken, in nanoseconds since 1970.';
COMMENT ON COLUMN lockapi.queue_limit.ids IS 'The jobs that were claimed last and may hold a place.';
COMMENT ON COLUMN lockapi.queue_limit.tokens IS 'The tokens of their deliveries.';
COMMENT ON COLUMN lockapi.queue_limit.namespace IS 'Namespace of the backend.';
COMMENT ON COLUMN lockapi.queue_limit.queue IS 'Name of the queue.';
COMMENT ON COLUMN lockapi.queue_limit.name IS 'Empty: the limit is that of the queue.';

ALTER TABLE lockapi.queue ADD COLUMN limited bool NOT NULL DEFAULT false;

COMMENT ON TABLE lockapi.queue IS 'Queues that somebody has paused, resumed or limited; the others need no row.';
COMMENT ON COLUMN lockapi.queue.limited IS 'Whether it has a limit; claims read this row in any case.';

-- Notes deliveries that were made without regard to the limit, so that they hold places.
--
-- Promises: reads the first 2,500 due jobs of each priority. Jobs that run are in front of those that wait, unless these have
-- names that are paused, or that nobody claims.
-- Race: the caller has locked the row of the limit.
CREATE FUNCTION lockapi.adopt_running(of_namespace text, of_queue text)
    RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
    AS $$
    DECLARE
        known int8[];
        more_ids int8[];
        more_tokens int8[];
    BEGIN
        SELECT l.tokens INTO known
          FROM lockapi.queue_limit AS l
         WHERE l.namespace = of_namespace AND l.queue = of_queue AND l.name = '';
        SELECT array_agg(o.id), array_agg(o.token) INTO more_ids, more_tokens
          FROM unnest('{0,1,2,3}'::int8[]) AS level (priority)
         CROSS JOIN LATERAL (
               SELECT j.id, j.token, j.lease_until
                 FROM lockapi.job AS j
                WHERE j.namespace = of_namespace AND j.queue = of_queue AND j.priority = level.priority
                  AND j.run_at <= clock_timestamp()
                ORDER BY j.run_at, j.id + 0
                LIMIT 2500) AS o
         WHERE o.lease_until > clock_timestamp() AND o.token <> ALL (known);
        IF more_ids IS NOT NULL THEN
            UPDATE lockapi.queue_limit AS l
               SET ids = l.ids || more_ids, tokens = l.tokens || more_tokens
             WHERE l.namespace = of_namespace AND l.queue = of_queue AND l.name = '';
        END IF;
    END
    $$;

COMMENT ON FUNCTION lockapi.adopt_running(text, text) IS 'Notes deliveries that were made without regard to the limit of their queue.';

-- Looks how many jobs of a limited queue may be claimed.
--
-- Promises: no more than places and permits are left. The deliveries that the lost claims took hold their places; if there are any
-- with these names, only they are claimed, again. Once it answers a room, the row of the limit is locked until the transaction ends.
-- Answers NULL where there is no limit any more, and otherwise the room, the jobs to claim again, the deliveries that hold
-- places, when the next permit comes, in microseconds, and whether another claim has the row locked.
-- Index: queue_limit_pkey and job_pkey.
-- Race: it never waits for a row. Each statement sees what was committed before it began, so also what the claim that has
-- just released the row has claimed. "completed" is computed from the deliveries that the same statement completes, which leave
-- their places before this is called. A lease that has ended leaves its place only if its job can be locked: an extension that
-- is under way, or a transaction that is about to complete the job, still holds it.
CREATE FUNCTION lockapi.begin_claim(of_namespace text, of_queue text, lost int8[], of_names text[], paused text[], completed int8)
    RETURNS TABLE (room int8, again int8[], ids int8[], tokens int8[], next_in int8, busy bool)
    LANGUAGE plpgsql ROWS 1
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
    AS $$
    #variable_conflict use_column
    DECLARE
        own lockapi.queue_limit;
        held bool := false;
        owed int8;
    BEGIN
        SELECT l.* INTO own
          FROM lockapi.queue_limit AS l
         WHERE l.namespace = of_namespace AND l.queue = of_queue AND l.name = '';
        IF NOT FOUND THEN
            RETURN NEXT;
            RETURN;
        END IF;
        LOOP
            room := NULL;
            IF own.most IS NOT NULL THEN
                SELECT coalesce(array_agg(p.id), '{}'), coalesce(array_agg(p.token), '{}'),
                       array_agg(p.id) FILTER (WHERE p.again)
                  INTO ids, tokens, again
                  FROM (SELECT o.id, u.token, o.again AND NOT o.ended AS again
                          FROM unnest(own.ids, own.tokens) AS u (id, token)
                         CROSS JOIN LATERAL (
                               SELECT j.id, j.lease_until <= clock_timestamp() AS ended,
                                      coalesce(j.claim = ANY (lost), false)
                                      AND (cardinality(of_names) = 0 OR j.name = ANY (of_names))
                                      AND coalesce(j.name <> ALL (paused), true)
                                      AND j.run_at <= statement_timestamp() AS again
                                 FROM lockapi.job AS j
                                WHERE j.id = u.id AND j.token = u.token
                                LIMIT 1) AS o
                          LEFT JOIN LATERAL (
                               SELECT j.id
                                 FROM lockapi.job AS j
                                WHERE o.ended AND held AND j.id = o.id AND j.token = u.token
                                  AND j.lease_until <= clock_timestamp()
                                LIMIT 1
                                  FOR UPDATE OF j SKIP LOCKED) AS f ON true
                         WHERE NOT o.ended OR (held AND f.id IS NULL)) AS p;
                room := greatest(own.most - cardinality(ids), 0);
            END IF;
            next_in := NULL;
            IF own.step IS NOT NULL THEN
                IF held AND own.at > lockapi.clock() THEN
                    -- The clock was set back.
                    UPDATE lockapi.queue_limit AS l SET tat = l.tat - (l.at - lockapi.clock()), at = lockapi.clock()
                     WHERE l.namespace = of_namespace AND l.queue = of_queue AND l.name = ''
                    RETURNING l.tat, l.at INTO own.tat, own.at;
                END IF;
                owed := greatest(own.tat - greatest(own.at, lockapi.clock()), 0);
                room := least(room, greatest((own.burst * own.step - owed) / own.step, 0));
                IF owed > (own.burst - 1) * own.step THEN
                    next_in := (owed - (own.burst - 1) * own.step + 999) / 1000;
                END IF;
            END IF;
            IF again IS NOT NULL THEN
                room := cardinality(again);
            END IF;
            EXIT WHEN held OR (room = 0 AND own.adopts_until = '-infinity' AND own.at <= lockapi.clock());
            SELECT l.* INTO own
              FROM lockapi.queue_limit AS l
             WHERE l.namespace = of_namespace AND l.queue = of_queue AND l.name = ''
               FOR UPDATE OF l SKIP LOCKED;
            IF NOT FOUND THEN
                room := 0;
                again := NULL;
                next_in := NULL;
                busy := true;
                EXIT;
            END IF;
            held := true;
            IF own.most IS NOT NULL AND own.adopts_until > '-infinity' THEN
                -- Once more after the time: maybe nobody has claimed in it.
                IF own.adopts_until <= clock_timestamp() THEN
                    UPDATE lockapi.queue_limit AS l SET adopts_until = '-infinity'
                     WHERE l.namespace = of_namespace AND l.queue = of_queue AND l.name = '';
                END IF;
                PERFORM lockapi.adopt_running(of_namespace, of_queue);
                SELECT l.* INTO own
                  FROM lockapi.queue_limit AS l
                 WHERE l.namespace = of_namespace AND l.queue = of_queue AND l.name = '';
            END IF;
        END LOOP;
        RETURN NEXT;
    END
    $$;

COMMENT ON FUNCTION lockapi.begin_claim(text, text, int8[], text[], text[], int8) IS 'How many jobs of a limited queue may be claimed; called by claims.';

-- Notes what was claimed of a limited queue: the deliveries that hold places from now on, and that permits were taken.
--
-- Promises: answers when the next permit comes, in microseconds; NULL if there is one.
-- Index: queue_limit_pkey. Race: the caller has locked the row.
CREATE FUNCTION lockapi.end_claim(of_namespace text, of_queue text, held_ids int8[], held_tokens int8[], more_ids int8[],
                                  more_tokens int8[], taken int8)
    RETURNS int8
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
    AS $$
    DECLARE
        moment int8 := lockapi.clock();
        next_in int8;
    BEGIN
        UPDATE lockapi.queue_limit AS l
           SET ids = CASE WHEN l.most IS NULL THEN l.ids ELSE held_ids || more_ids END,
               tokens = CASE WHEN l.most IS NULL THEN l.tokens ELSE held_tokens || more_tokens END,
               tat = CASE WHEN l.step IS NULL THEN l.tat
                          ELSE moment + greatest(l.tat - greatest(l.at, moment), 0) + taken * l.step END,
               at = CASE WHEN l.step IS NULL THEN l.at ELSE moment END
         WHERE l.namespace = of_namespace AND l.queue = of_queue AND l.name = ''
        RETURNING (l.tat - l.at - (l.burst - 1) * l.step + 999) / 1000 INTO next_in;
        RETURN CASE WHEN next_in > 0 THEN next_in END;
    END
    $$;

COMMENT ON FUNCTION lockapi.end_claim(text, text, int8[], int8[], int8[], int8[], int8) IS 'Notes what was claimed of a limited queue; called by claims.';

-- Sets the limit of a queue; what of it is NULL does not limit.
--
-- Promises: it counts also jobs that run already. What was taken of the rate before stays taken, as far as the new rate
-- can owe so much.
-- Index: queue_limit_pkey and job_due. Race: it waits for a claim that is under way. One that began before there was a limit, and commits
-- later, is counted by the claims of the next two seconds and by the first one after them.
CREATE FUNCTION lockapi.set_queue_limit(of_namespace text, of_queue text, running int8, new_permits int8, new_period int8,
                                        new_burst int8, new_step int8)
    RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
    AS $$
    DECLARE
        soon constant timestamptz := clock_timestamp() + interval '2 seconds';
        moment constant int8 := lockapi.clock();
        adopts bool;
    BEGIN
        INSERT INTO lockapi.queue_limit AS l (adopts_until, most, permits, period, burst, step, namespace, queue)
        VALUES (CASE WHEN running IS NULL THEN '-infinity' ELSE soon END, running, new_permits, new_period, new_burst, new_step,
                of_namespace, of_queue)
        ON CONFLICT (namespace, queue, name) DO UPDATE
           SET changed_at = clock_timestamp(),
               adopts_until = CASE WHEN running IS NULL THEN '-infinity' WHEN l.most IS NULL THEN soon ELSE l.adopts_until END,
               most = running, permits = new_permits, period = new_period, burst = new_burst, step = new_step,
               tat = CASE WHEN new_step IS NULL THEN 0
                          ELSE moment + least(greatest(l.tat - greatest(l.at, moment), 0), new_burst * new_step) END,
               at = CASE WHEN new_step IS NULL THEN 0 ELSE moment END,
               ids = CASE WHEN running IS NULL THEN '{}' ELSE l.ids END,
               tokens = CASE WHEN running IS NULL THEN '{}' ELSE l.tokens END
        RETURNING l.adopts_until = soon INTO adopts;
        INSERT INTO lockapi.queue AS q (namespace, name, paused, limited)
        VALUES (of_namespace, of_queue, false, true)
        ON CONFLICT (namespace, name) DO UPDATE SET limited = true WHERE NOT q.limited;
        IF adopts THEN
            PERFORM lockapi.adopt_running(of_namespace, of_queue);
        END IF;
    END
    $$;

COMMENT ON FUNCTION lockapi.set_queue_limit(text, text, int8, int8, int8, int8, int8) IS 'Sets the limit of a queue.';
