-- What a claim took whose answer was lost is claimed again also where the queue has a rate, and no limit of what runs.

SET LOCAL search_path = pg_catalog, pg_temp;

ALTER TABLE lockapi.queue_limit ADD CONSTRAINT queue_limit_noted CHECK (cardinality(ids) = cardinality(tokens));

COMMENT ON COLUMN lockapi.queue_limit.ids IS 'The jobs that were claimed last: those that may hold a place, or 256.';

-- As before (see 0020_queue_limits.sql), also for a queue that has a rate alone: looks how many jobs of a limited queue may be
-- claimed.
--
-- Promises: no more than places and permits are left. The deliveries that the lost claims took hold their places; if there are any
-- with these names, only they are claimed, again, also where no permit is left; of a queue that has a rate alone, the last 256
-- deliveries are known. Once it answers a room, the row of the limit is locked until the transaction ends.
-- Answers NULL where there is no limit any more, and otherwise the room, the jobs to claim again, the deliveries that hold
-- places, when the next permit comes, in microseconds, and whether another claim has the row locked.
-- Index: queue_limit_pkey and job_pkey.
-- Race: it never waits for a row. Each statement sees what was committed before it began, so also what the claim that has
-- just released the row has claimed. "completed" is computed from the deliveries that the same statement completes, which leave
-- their places before this is called. A lease that has ended leaves its place only if its job can be locked: an extension that
-- is under way, or a transaction that is about to complete the job, still holds it.
CREATE OR REPLACE FUNCTION lockapi.begin_claim(of_namespace text, of_queue text, lost int8[], of_names text[], paused text[], completed int8)
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
            again := NULL;
            ids := own.ids;
            tokens := own.tokens;
            -- Without a limit of what runs, nobody asks what holds a place.
            IF own.most IS NOT NULL OR cardinality(lost) > 0 THEN
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
            END IF;
            IF own.most IS NOT NULL THEN
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

-- As before, also for a queue that has a rate alone: notes what was claimed of a limited queue: the deliveries that hold places
-- from now on, or the last 256, and that permits were taken.
--
-- Promises: answers when the next permit comes, in microseconds; NULL if there is one.
-- Index: queue_limit_pkey. Race: the caller has locked the row.
CREATE OR REPLACE FUNCTION lockapi.end_claim(of_namespace text, of_queue text, held_ids int8[], held_tokens int8[], more_ids int8[],
                                  more_tokens int8[], taken int8)
    RETURNS int8
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
    AS $$
    DECLARE
        moment int8 := lockapi.clock();
        next_in int8;
        first int4 := 1;
    BEGIN
        IF EXISTS (SELECT FROM lockapi.queue_limit AS l
                    WHERE l.namespace = of_namespace AND l.queue = of_queue AND l.name = '' AND l.most IS NULL) THEN
            first := greatest(cardinality(held_ids || more_ids) - 255, 1);
        END IF;
        UPDATE lockapi.queue_limit AS l
           SET ids = (held_ids || more_ids)[first:],
               tokens = (held_tokens || more_tokens)[first:],
               tat = CASE WHEN l.step IS NULL THEN l.tat
                          ELSE moment + greatest(l.tat - greatest(l.at, moment), 0) + taken * l.step END,
               at = CASE WHEN l.step IS NULL THEN l.at ELSE moment END
         WHERE l.namespace = of_namespace AND l.queue = of_queue AND l.name = ''
        RETURNING (l.tat - l.at - (l.burst - 1) * l.step + 999) / 1000 INTO next_in;
        RETURN CASE WHEN next_in > 0 THEN next_in END;
    END
    $$;

COMMENT ON FUNCTION lockapi.end_claim(text, text, int8[], int8[], int8[], int8[], int8) IS 'Notes what was claimed of a limited queue; called by claims.';
