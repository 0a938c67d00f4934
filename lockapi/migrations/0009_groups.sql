-- Groups of jobs: at most so many of a group run at once, in all programs together.
--
-- The limit is not a permit that somebody would have to give back. A job with a group is *parked* (due_at is
-- set, and run_at is a time that never comes) until it is *admitted* (due_at is NULL, and run_at is when that
-- was). Only an admitted job is claimed, and no more of a group are admitted than may run, so no more run:
-- whatever is killed, comes late or is rolled back, the row of the job is what counts. A job gives its place
-- up with its row, or by being parked again for its next attempt.
--
-- Nothing but lockapi.admit() admits, and only one at a time does so for a queue. Pushes and completions touch
-- no row of the group, so they never wait for each other, however long a transaction of the program stays open.

SET LOCAL search_path = pg_catalog, pg_temp;

ALTER TABLE lockapi.job ADD COLUMN group_key text COLLATE "C", ADD COLUMN due_at timestamptz;
ALTER TABLE lockapi.job_archive ADD COLUMN group_key text COLLATE "C";

COMMENT ON COLUMN lockapi.job.group_key IS 'The group that it belongs to; NULL: none.';
COMMENT ON COLUMN lockapi.job.due_at IS 'While it is parked, because of its group: not admitted before this time. NULL: it is admitted, or has no group.';
COMMENT ON COLUMN lockapi.job_archive.group_key IS 'The group that it belonged to.';

-- As in the tables of queues, each way to find rows has one index that its conditions fit: the groups that have
-- parked jobs, and the next one of each by its time; the next one by its number; and those that are admitted.
-- An index of some rows fits whatever implies its condition, so those of the first two are said differently.
CREATE INDEX job_parked ON lockapi.job (namespace COLLATE "POSIX", queue COLLATE "POSIX", group_key, priority, due_at, (id + 0))
    WHERE due_at IS NOT NULL;
CREATE INDEX job_parked_order ON lockapi.job ((namespace || ''), (queue || ''), (group_key || ''), (id + 0))
    WHERE coalesce(due_at <= 'infinity'::timestamptz, false);
CREATE INDEX job_admitted ON lockapi.job (namespace COLLATE "POSIX", queue COLLATE "POSIX", group_key)
    WHERE due_at IS NULL AND group_key IS NOT NULL;

CREATE TABLE lockapi.queue_groups (
    turns      int8             NOT NULL DEFAULT 0,
    most       int4             NOT NULL DEFAULT 1 CHECK (most > 0),
    ordered    bool             NOT NULL DEFAULT false,
    changed_at timestamptz      NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    namespace  text COLLATE "C" NOT NULL,
    queue      text COLLATE "C" NOT NULL,
    reached    text COLLATE "C" NOT NULL DEFAULT '',
    CONSTRAINT queue_groups_pkey PRIMARY KEY (namespace, queue)
) WITH (fillfactor = 50);

COMMENT ON TABLE lockapi.queue_groups IS 'How the groups of a queue are limited. A queue without a row has the defaults.';
COMMENT ON COLUMN lockapi.queue_groups.turns IS 'How often jobs have been admitted.';
COMMENT ON COLUMN lockapi.queue_groups.most IS 'How many jobs of a group run at once at most.';
COMMENT ON COLUMN lockapi.queue_groups.ordered IS 'Whether the jobs of a group run one after the other, in the order of their numbers.';
COMMENT ON COLUMN lockapi.queue_groups.changed_at IS 'When somebody last set that.';
COMMENT ON COLUMN lockapi.queue_groups.namespace IS 'Namespace of the backend.';
COMMENT ON COLUMN lockapi.queue_groups.queue IS 'Name of the queue.';
COMMENT ON COLUMN lockapi.queue_groups.reached IS 'The last group that was looked at; the next ones have their turn first.';

CREATE TABLE lockapi.group_limit (
    most      int4             NOT NULL CHECK (most > 0),
    namespace text COLLATE "C" NOT NULL,
    queue     text COLLATE "C" NOT NULL,
    group_key text COLLATE "C" NOT NULL,
    CONSTRAINT group_limit_pkey PRIMARY KEY (namespace, queue, group_key)
);

COMMENT ON TABLE lockapi.group_limit IS 'Groups that have a limit of their own.';
COMMENT ON COLUMN lockapi.group_limit.most IS 'How many of its jobs run at once at most; one where the queue is ordered.';
COMMENT ON COLUMN lockapi.group_limit.namespace IS 'Namespace of the backend.';
COMMENT ON COLUMN lockapi.group_limit.queue IS 'Name of the queue.';
COMMENT ON COLUMN lockapi.group_limit.group_key IS 'The group.';

-- Admits parked jobs of at most "many" groups, and at most four times as many jobs: those that are due, as far as
-- the limits of their groups allow.
--
-- Promises: no more jobs of a group are admitted than its limit, whoever calls this at the same time. A group has
-- its next turn after all others that have parked jobs. In an ordered queue the job with the smallest number is
-- next, and while it is not due, or somebody has its row locked, none is.
-- Answers how many jobs were admitted, how many groups were looked at, and, if no job was admitted, when the next
-- one will be due, in microseconds from now.
-- Race: one at a time for a queue, by an advisory lock that no name of a mutex has. The statements that follow
-- see what was committed before they begin, so also what the one before has admitted, and what has ended
-- since then. A job that is pushed, or ends, at the same time is seen by the next call. Under a stricter isolation
-- than READ COMMITTED they would see an older state: then the second that changes queue_groups fails.
-- Locks: it waits for the advisory lock, holding nothing, and for no row: those that are locked are skipped.
CREATE FUNCTION lockapi.admit(of_namespace text, of_queue text, many int8)
    RETURNS TABLE (admitted int8, looked int8, next_due int8)
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
    AS $$
    DECLARE
        own lockapi.queue_groups;
        lanes int8[] := '{0,1,2,3}';
        names text[];
        free text[];
        rooms int8[];
        ids int8[];
        last text;
        moment timestamptz;
    BEGIN
        PERFORM pg_advisory_xact_lock(lockapi.advisory_key(of_namespace, '#groups ' || of_queue));
        moment := clock_timestamp();
        SELECT q.* INTO own FROM lockapi.queue_groups AS q WHERE q.namespace = of_namespace AND q.queue = of_queue;
        own.most := coalesce(own.most, 1);
        own.turns := coalesce(own.turns, 0);
        own.reached := coalesce(own.reached, '');
        IF own.turns % 16 = 15 THEN
            lanes := '{3,2,1,0}';
        END IF;
        names := ARRAY(
            WITH RECURSIVE part (name, n) AS (
                (SELECT j.group_key, 1
                   FROM lockapi.job AS j
                  WHERE j.namespace COLLATE "POSIX" = of_namespace AND j.queue COLLATE "POSIX" = of_queue
                    AND j.due_at IS NOT NULL AND j.group_key > own.reached
                  ORDER BY j.group_key
                  LIMIT 1)
                UNION ALL
                SELECT o.group_key, p.n + 1
                  FROM part AS p
                 CROSS JOIN LATERAL (
                       SELECT j.group_key
                         FROM lockapi.job AS j
                        WHERE j.namespace COLLATE "POSIX" = of_namespace AND j.queue COLLATE "POSIX" = of_queue
                          AND j.due_at IS NOT NULL AND j.group_key > p.name
                        ORDER BY j.group_key
                        LIMIT 1) AS o
                 WHERE p.n < many
            )
            SELECT p.name FROM part AS p ORDER BY p.n);
        IF cardinality(names) < many AND own.reached <> '' THEN
            names := names || ARRAY(
                WITH RECURSIVE part (name, n) AS (
                    (SELECT j.group_key, cardinality(names) + 1
                       FROM lockapi.job AS j
                      WHERE j.namespace COLLATE "POSIX" = of_namespace AND j.queue COLLATE "POSIX" = of_queue
                        AND j.due_at IS NOT NULL AND j.group_key <= own.reached
                      ORDER BY j.group_key
                      LIMIT 1)
                    UNION ALL
                    SELECT o.group_key, p.n + 1
                      FROM part AS p
                     CROSS JOIN LATERAL (
                           SELECT j.group_key
                             FROM lockapi.job AS j
                            WHERE j.namespace COLLATE "POSIX" = of_namespace AND j.queue COLLATE "POSIX" = of_queue
                              AND j.due_at IS NOT NULL AND j.group_key > p.name AND j.group_key <= own.reached
                            ORDER BY j.group_key
                            LIMIT 1) AS o
                     WHERE p.n < many
                )
                SELECT p.name FROM part AS p ORDER BY p.n);
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
                       SELECT CASE WHEN own.ordered THEN 1
                                   ELSE coalesce((SELECT o.most FROM lockapi.group_limit AS o
                                                   WHERE o.namespace = of_namespace AND o.queue = of_queue
                                                     AND o.group_key = g.name), own.most) END AS most
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
        IF admitted = 0 AND own.ordered THEN
            SELECT (extract(epoch FROM min(h.due_at) - moment) * 1000000)::int8 INTO next_due
              FROM unnest(free) AS g (name)
             CROSS JOIN LATERAL (
                   SELECT j.due_at
                     FROM lockapi.job AS j
                    WHERE (j.namespace || '') = of_namespace AND (j.queue || '') = of_queue
                      AND (j.group_key || '') = g.name AND coalesce(j.due_at <= 'infinity'::timestamptz, false)
                    ORDER BY j.id + 0
                    LIMIT 1) AS h
             WHERE h.due_at > moment;
        ELSIF admitted = 0 THEN
            SELECT (extract(epoch FROM min(h.due_at) - moment) * 1000000)::int8 INTO next_due
              FROM unnest(free) AS g (name)
             CROSS JOIN unnest(lanes) AS lane (priority)
             CROSS JOIN LATERAL (
                   SELECT j.due_at
                     FROM lockapi.job AS j
                    WHERE j.namespace COLLATE "POSIX" = of_namespace AND j.queue COLLATE "POSIX" = of_queue
                      AND j.group_key = g.name AND j.priority = lane.priority AND j.due_at > moment
                    ORDER BY j.due_at
                    LIMIT 1) AS h;
        END IF;
        RETURN NEXT;
    END
    $$;

COMMENT ON FUNCTION lockapi.admit(text, text, int8) IS 'Admits jobs of groups that have room for them; called by whoever claims.';

CREATE OR REPLACE VIEW lockapi.task_view AS
    SELECT id, namespace, queue, name, payload,
           CASE WHEN lease_until > clock_timestamp() THEN 'processing' ELSE 'pending' END AS status,
           worker, created_at, coalesce(due_at, run_at) AS run_at, started_at, NULL::timestamptz AS completed_at,
           attempt, max_attempts, priority, error,
           lease_until - clock_timestamp() AS lease_left, group_key
      FROM lockapi.job
     UNION ALL
    SELECT id, namespace, queue, name, payload, status,
           worker, created_at, run_at, started_at, completed_at,
           attempt, max_attempts, priority, error, NULL, group_key
      FROM lockapi.job_archive;
