-- Seeing who holds and who waits for what, with names, and a log of what operators did.
--
-- An advisory lock is a number of the server. What it is called, which program a session belongs to,
-- and since when something is held or waited for is noted here by the programs themselves, in the
-- background, once it has lasted for half a second: a lock that is held for less writes nothing.
--
-- Sessions and notes end with the server, so their tables are not logged.

SET LOCAL search_path = pg_catalog, pg_temp;

CREATE TABLE lockapi.lock_name (
    lock_key  int8             NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    seen_at   timestamptz      NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CONSTRAINT lock_name_pkey PRIMARY KEY (lock_key)
);

COMMENT ON TABLE lockapi.lock_name IS 'What the numbers of advisory locks are called; deleted a month after they were last seen in use.';
COMMENT ON COLUMN lockapi.lock_name.lock_key IS 'The number: lockapi.advisory_key(namespace, name).';
COMMENT ON COLUMN lockapi.lock_name.namespace IS 'Namespace of the backend.';
COMMENT ON COLUMN lockapi.lock_name.name IS 'The name, with a leading # doubled.';
COMMENT ON COLUMN lockapi.lock_name.seen_at IS 'When a program last noted that it uses it, to a day.';

CREATE UNLOGGED TABLE lockapi.lock_session (
    mark      int8             NOT NULL,
    backend   int8             NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    owner     text             NOT NULL,
    noted_at  timestamptz      NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CONSTRAINT lock_session_pkey PRIMARY KEY (mark)
);

COMMENT ON TABLE lockapi.lock_session IS 'Sessions that hold or wait for mutexes; each lives as long as its mark is locked.';
COMMENT ON COLUMN lockapi.lock_session.mark IS 'The advisory lock that only this session holds.';
COMMENT ON COLUMN lockapi.lock_session.backend IS 'Random number of the backend, whose sessions have it in common.';
COMMENT ON COLUMN lockapi.lock_session.namespace IS 'Namespace of the backend.';
COMMENT ON COLUMN lockapi.lock_session.owner IS 'The program, in its own words.';
COMMENT ON COLUMN lockapi.lock_session.noted_at IS 'When it was noted.';

CREATE UNLOGGED TABLE lockapi.lock_note (
    backend  int8        NOT NULL,
    lock_key int8        NOT NULL,
    pair     bool        NOT NULL,
    waits    bool        NOT NULL,
    fence    int8,
    since    timestamptz NOT NULL,
    CONSTRAINT lock_note_pkey PRIMARY KEY (backend, lock_key, pair, waits)
);

COMMENT ON TABLE lockapi.lock_note IS 'Since when a program holds or waits for a mutex, once that has lasted for half a second.';
COMMENT ON COLUMN lockapi.lock_note.backend IS 'The backend, as in lock_session.';
COMMENT ON COLUMN lockapi.lock_note.lock_key IS 'Number of the advisory lock.';
COMMENT ON COLUMN lockapi.lock_note.pair IS 'Whether that is a pair of numbers: the first in the upper half, the second in the lower.';
COMMENT ON COLUMN lockapi.lock_note.waits IS 'Waits for it, or holds it.';
COMMENT ON COLUMN lockapi.lock_note.fence IS 'Fencing token of the holder.';
COMMENT ON COLUMN lockapi.lock_note.since IS 'Since when.';

CREATE TABLE lockapi.audit (
    id          int8        NOT NULL GENERATED ALWAYS AS IDENTITY,
    at          timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    by_user     text        NOT NULL DEFAULT session_user,
    application text        NOT NULL DEFAULT pg_catalog.current_setting('application_name'),
    namespace   text        NOT NULL,
    action      text        NOT NULL,
    target      text        NOT NULL,
    reason      text        NOT NULL,
    CONSTRAINT audit_pkey PRIMARY KEY (id)
);

COMMENT ON TABLE lockapi.audit IS 'What operators did to the locks and jobs of others; nothing is deleted from it.';
COMMENT ON COLUMN lockapi.audit.id IS 'Its number.';
COMMENT ON COLUMN lockapi.audit.at IS 'When.';
COMMENT ON COLUMN lockapi.audit.by_user IS 'The role that the session logged in as, as the server knows it.';
COMMENT ON COLUMN lockapi.audit.application IS 'The application_name of the session that did it.';
COMMENT ON COLUMN lockapi.audit.namespace IS 'Namespace of the backend that did it.';
COMMENT ON COLUMN lockapi.audit.action IS 'release lease, terminate session, cancel statement or cancel job.';
COMMENT ON COLUMN lockapi.audit.target IS 'To what.';
COMMENT ON COLUMN lockapi.audit.reason IS 'Why, in the words of who did it.';

-- The name of an advisory lock that has none: its number, or its two numbers.
CREATE FUNCTION lockapi.lock_number(lock_key int8, pair bool) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT CASE WHEN $2
                THEN '#' OPERATOR(pg_catalog.||) ($1 OPERATOR(pg_catalog.>>) 32) OPERATOR(pg_catalog.||) ','
                         OPERATOR(pg_catalog.||) (($1 OPERATOR(pg_catalog.<<) 32) OPERATOR(pg_catalog.>>) 32)
                ELSE '#' OPERATOR(pg_catalog.||) $1 END
    $$;

COMMENT ON FUNCTION lockapi.lock_number(int8, bool) IS 'An advisory lock key as text: #number or #class,object.';

-- Advisory locks of this database, held and waited for, as the server has them. Planned with what calls it.
CREATE FUNCTION lockapi.server_locks()
    RETURNS TABLE (pid int4, lock_key int8, pair bool, mode text, granted bool, waits_since timestamptz)
    LANGUAGE sql STABLE
    AS $$
    SELECT l.pid,
           (l.classid::pg_catalog.int8 OPERATOR(pg_catalog.<<) 32) OPERATOR(pg_catalog.|) l.objid::pg_catalog.int8,
           l.objsubid OPERATOR(pg_catalog.=) 2,
           CASE WHEN l.mode OPERATOR(pg_catalog.=) 'ShareLock' THEN 'shared' ELSE 'exclusive' END, l.granted,
           -- Servers before version 14 do not tell it.
           CASE WHEN NOT l.granted
                THEN (pg_catalog.to_jsonb(l) OPERATOR(pg_catalog.->>) 'waitstart')::pg_catalog.timestamptz END
      FROM pg_catalog.pg_locks AS l
     WHERE l.locktype OPERATOR(pg_catalog.=) 'advisory'
       AND l.database OPERATOR(pg_catalog.=) (
               SELECT d.oid FROM pg_catalog.pg_database AS d
                WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
    $$;

COMMENT ON FUNCTION lockapi.server_locks() IS 'Advisory locks by their numbers, held and waited for.';

-- They run with the rights of the owner of the tables, so that who may read the views needs no rights on these.
--
-- Nobody knows the size of the server's lock table beforehand, and the tables of sessions and notes fill
-- and empty faster than statistics are made. So that the time grows with the number of locks and not with
-- its square, these functions forbid nested loops but for the names, of which there may be many more than
-- locks: each is looked up by its key.
CREATE FUNCTION lockapi.held_locks()
    RETURNS TABLE (namespace text, name text, mode text, owner text, pid int4, fence int8, since timestamptz,
                   lock_key int8, pair bool)
    LANGUAGE sql STABLE SECURITY DEFINER ROWS 10000
    SET search_path = pg_catalog, pg_temp SET enable_nestloop = off SET enable_seqscan = on SET jit = off
    AS $$
    WITH lock AS MATERIALIZED (
        SELECT l.pid, l.lock_key, l.pair, l.mode
          FROM lockapi.server_locks() AS l
         WHERE l.granted
    ), session AS MATERIALIZED (
        SELECT l.pid, s.mark, s.backend, s.owner
          FROM lock AS l
          JOIN lockapi.lock_session AS s ON s.mark = l.lock_key
         WHERE NOT l.pair AND l.mode = 'exclusive'
    )
    SELECT n.namespace, coalesce(n.name, lockapi.lock_number(l.lock_key, l.pair)), l.mode, s.owner, l.pid, o.fence,
           o.since, l.lock_key, l.pair
      FROM lock AS l
      LEFT JOIN session AS s ON s.pid = l.pid
      LEFT JOIN lockapi.lock_note AS o
        ON o.backend = s.backend AND o.lock_key = l.lock_key AND o.pair = l.pair AND NOT o.waits
      LEFT JOIN LATERAL (
           SELECT n.namespace, n.name FROM lockapi.lock_name AS n WHERE n.lock_key = l.lock_key AND NOT l.pair OFFSET 0
           ) AS n ON true
     WHERE s.mark IS NULL OR s.mark <> l.lock_key OR l.pair
    $$;

COMMENT ON FUNCTION lockapi.held_locks() IS 'Who holds which advisory lock, without what the server knows of the session.';

CREATE FUNCTION lockapi.waits()
    RETURNS TABLE (namespace text, name text, mode text, owner text, pid int4, since timestamptz, blockers int4[],
                   lock_key int8, pair bool)
    LANGUAGE sql STABLE SECURITY DEFINER ROWS 100
    SET search_path = pg_catalog, pg_temp SET enable_nestloop = off SET enable_seqscan = on SET jit = off
    AS $$
    WITH lock AS MATERIALIZED (
        SELECT l.* FROM lockapi.server_locks() AS l
    ), session AS MATERIALIZED (
        SELECT l.pid, s.backend, s.owner
          FROM lock AS l
          JOIN lockapi.lock_session AS s ON s.mark = l.lock_key
         WHERE l.granted AND NOT l.pair AND l.mode = 'exclusive'
    ), asked AS MATERIALIZED (
        SELECT l.lock_key, l.pair, NULL::text AS name, l.mode, s.owner, s.backend, l.pid, l.waits_since
          FROM lock AS l
          LEFT JOIN session AS s ON s.pid = l.pid
         WHERE NOT l.granted
         UNION ALL
        -- The names of tables of other databases are not known here.
        SELECT NULL, NULL, CASE WHEN l.database IN (0, (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()))
                                THEN coalesce(l.relation::regclass::text, l.locktype) ELSE l.locktype END,
               l.mode, NULL, NULL, l.pid, (to_jsonb(l) ->> 'waitstart')::timestamptz
          FROM pg_locks AS l
         WHERE NOT l.granted AND l.locktype <> 'advisory'
    ), noted AS MATERIALIZED (
        SELECT o.backend, o.lock_key, o.pair, o.since
          FROM lockapi.lock_note AS o
         WHERE o.waits
    ), within AS (
        -- In the queue of a program, or polled for.
        SELECT o.lock_key, o.pair, s.owner, o.since, array_agg(h.pid) FILTER (WHERE h.pid IS NOT NULL) AS pids
          FROM noted AS o
          JOIN (SELECT DISTINCT s.backend, s.owner FROM session AS s) AS s ON s.backend = o.backend
          LEFT JOIN asked AS a ON a.backend = o.backend AND a.lock_key = o.lock_key AND a.pair = o.pair
          LEFT JOIN lock AS h ON h.lock_key = o.lock_key AND h.pair = o.pair AND h.granted
         WHERE a.pid IS NULL
         GROUP BY o.lock_key, o.pair, s.owner, o.since, o.backend
    ), waiting AS (
        SELECT a.lock_key, a.pair, a.name, a.mode, a.owner, a.pid, coalesce(o.since, a.waits_since) AS since,
               pg_blocking_pids(a.pid) AS pids
          FROM asked AS a
          LEFT JOIN noted AS o ON o.backend = a.backend AND o.lock_key = a.lock_key AND o.pair = a.pair
         UNION ALL
        SELECT w.lock_key, w.pair, NULL, NULL, w.owner, NULL, w.since, w.pids
          FROM within AS w
    )
    SELECT n.namespace, coalesce(w.name, n.name, lockapi.lock_number(w.lock_key, w.pair)), w.mode, w.owner, w.pid,
           w.since, w.pids, w.lock_key, w.pair
      FROM waiting AS w
      LEFT JOIN LATERAL (
           SELECT n.namespace, n.name FROM lockapi.lock_name AS n WHERE n.lock_key = w.lock_key AND NOT w.pair OFFSET 0
           ) AS n ON true
    $$;

COMMENT ON FUNCTION lockapi.waits() IS 'Who waits for which lock, with the sessions in the way, without what the server knows of the sessions.';

CREATE VIEW lockapi.lock_view AS
    SELECT l.namespace, l.name, l.mode, l.owner, a.application_name AS application, a.usename::text AS username,
           a.client_addr AS client, l.pid, l.fence, l.since, clock_timestamp() - l.since AS held_for, l.lock_key, l.pair
      FROM lockapi.held_locks() AS l
      LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid;

COMMENT ON VIEW lockapi.lock_view IS 'Who holds which advisory lock: a mutex by its name, the key of a person by its number; since when, where it is held by a mutex for half a second or more.';

-- Who waits for whom: for advisory locks, and for any other lock of the server.
CREATE VIEW lockapi.wait_view AS
    WITH activity AS MATERIALIZED (
        SELECT a.pid, a.application_name, a.usename::text AS username, a.state, a.query, a.query_start, a.xact_start
          FROM pg_catalog.pg_stat_activity AS a
    )
    SELECT w.namespace, w.name, w.mode, w.owner,
           w.pid, a.application_name AS application, a.username, a.query AS statement,
           coalesce(w.since, a.query_start) AS since,
           clock_timestamp() - coalesce(w.since, a.query_start) AS waits_for,
           b.pid AS blocker_pid, b.application_name AS blocker_application, b.username AS blocker_username,
           b.state AS blocker_state, b.query AS blocker_statement,
           clock_timestamp() - b.xact_start AS blocker_transaction_age,
           w.lock_key, w.pair
      FROM lockapi.waits() AS w
      LEFT JOIN activity AS a ON a.pid = w.pid
      LEFT JOIN LATERAL (SELECT DISTINCT u.pid FROM unnest(w.blockers) AS u (pid)) AS u ON true
      LEFT JOIN activity AS b ON b.pid = u.pid;

COMMENT ON VIEW lockapi.wait_view IS 'Who waits for which lock, for how long and with which statement, a row for each session that is in the way; without a pid it waits within its program.';

-- Jobs that run, of one queue, of one namespace, or of all: those whose delivery has lease left. They are
-- among the first ones that are due, in the order in which they are claimed, and no index knows them: of
-- one queue the first "most" of each priority are looked at, of many the first 50, and as many as "most"
-- where at least half of these run. So the time grows with the number of queues and of jobs that run.
CREATE FUNCTION lockapi.running_jobs(of_namespace text, of_queue text, most int8)
    RETURNS TABLE (id int8, namespace text, queue text, name text, worker text, attempt int4, priority int2,
                   started_at timestamptz, lease_until timestamptz)
    LANGUAGE sql STABLE SECURITY DEFINER ROWS 1000
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
    AS $$
    WITH RECURSIVE queues AS (
        (SELECT j.namespace, j.queue
           FROM lockapi.job AS j
          WHERE (j.namespace, j.queue) >= (coalesce($1, ''), coalesce($2, ''))
          ORDER BY j.namespace, j.queue
          LIMIT 1)
        UNION ALL
        SELECT n.namespace, n.queue
          FROM queues AS q
         CROSS JOIN LATERAL (
               SELECT j.namespace, j.queue
                 FROM lockapi.job AS j
                WHERE (j.namespace, j.queue) > (q.namespace, q.queue)
                ORDER BY j.namespace, j.queue
                LIMIT 1) AS n
         WHERE $1 IS NULL OR (q.namespace = $1 AND ($2 IS NULL OR q.queue = $2))
    ), front AS MATERIALIZED (
        SELECT q.namespace, q.queue, level.priority, o.*
          FROM queues AS q
         CROSS JOIN (VALUES (0::int2), (1::int2), (2::int2), (3::int2)) AS level (priority)
         CROSS JOIN LATERAL (
               SELECT j.id, j.name, j.worker, j.attempt, j.started_at, j.lease_until
                 FROM lockapi.job AS j
                WHERE j.namespace = q.namespace AND j.queue = q.queue AND j.priority = level.priority
                  AND j.run_at <= statement_timestamp()
                ORDER BY j.run_at, j.id + 0
                LIMIT CASE WHEN $2 IS NULL THEN least($3, 50) ELSE $3 END) AS o
         WHERE ($1 IS NULL OR q.namespace = $1) AND ($2 IS NULL OR q.queue = $2)
    ), busy AS (
        SELECT f.namespace, f.queue, f.priority
          FROM front AS f
         WHERE $2 IS NULL
         GROUP BY f.namespace, f.queue, f.priority
        HAVING count(*) FILTER (WHERE f.lease_until > clock_timestamp()) >= 25
    )
    SELECT f.id, f.namespace, f.queue, f.name, f.worker, f.attempt, f.priority, f.started_at, f.lease_until
      FROM front AS f
     WHERE f.lease_until > clock_timestamp()
     UNION ALL
    SELECT o.id, b.namespace, b.queue, o.name, o.worker, o.attempt, b.priority, o.started_at, o.lease_until
      FROM busy AS b
     CROSS JOIN LATERAL (
           SELECT j.id, j.name, j.worker, j.attempt, j.started_at, j.lease_until
             FROM lockapi.job AS j
            WHERE j.namespace = b.namespace AND j.queue = b.queue AND j.priority = b.priority
              AND j.run_at <= statement_timestamp()
            ORDER BY j.run_at, j.id + 0
           OFFSET 50
            LIMIT greatest($3 - 50, 0)) AS o
     WHERE o.lease_until > clock_timestamp()
    $$;

COMMENT ON FUNCTION lockapi.running_jobs(text, text, int8) IS 'Jobs that run, of a queue and namespace or (NULL) of all, among so many of the first of each priority; of many queues among the first 50, where fewer than half of these run.';

CREATE VIEW lockapi.running_view AS
    SELECT j.id, j.namespace, j.queue, j.name, j.worker, j.attempt, j.priority, j.started_at,
           clock_timestamp() - j.started_at AS runs_for, j.lease_until - clock_timestamp() AS lease_left
      FROM lockapi.running_jobs(NULL, NULL, 1000) AS j;

COMMENT ON VIEW lockapi.running_view IS 'Jobs that run, on which worker, and for how long they have it still; of each queue and priority among the first 50, or the first 1000 where at least half of these run.';

-- The only text that is composed of identifiers: they are quoted by format(), and the mode is one of
-- eight. False when the table is not to be had in time; whoever calls it has set lock_timeout. A table
-- without a schema is the one that the caller's search_path finds, so the function has none of its own.
CREATE FUNCTION lockapi.lock_table(schema_name text, table_name text, mode text, no_wait bool) RETURNS bool
    LANGUAGE plpgsql
    AS $$
    BEGIN
        IF mode OPERATOR(pg_catalog.<>) ALL (
               ARRAY['ACCESS SHARE', 'ROW SHARE', 'ROW EXCLUSIVE', 'SHARE UPDATE EXCLUSIVE', 'SHARE',
                     'SHARE ROW EXCLUSIVE', 'EXCLUSIVE', 'ACCESS EXCLUSIVE']::pg_catalog.text[]) THEN
            RAISE EXCEPTION 'unknown mode of a table lock: %; allowed are those of LOCK TABLE', mode USING ERRCODE = 'invalid_parameter_value';
        END IF;
        EXECUTE pg_catalog.format(
            'LOCK TABLE %s IN %s MODE%s',
            CASE WHEN schema_name OPERATOR(pg_catalog.=) '' THEN pg_catalog.format('%I', table_name)
                 ELSE pg_catalog.format('%I.%I', schema_name, table_name) END,
            mode, CASE WHEN no_wait THEN ' NOWAIT' ELSE '' END);
        RETURN true;
    EXCEPTION WHEN lock_not_available THEN
        RETURN false;
    END
    $$;

COMMENT ON FUNCTION lockapi.lock_table(text, text, text, bool) IS 'Locks a table of the program until its transaction ends; false after lock_timeout.';
