-- Reads which sessions block the session $2, cancels the statements of ($3, $4) and terminates the sessions
-- of ($5, $6) among them, for the reason $7.
--
-- Promises: a row for each blocking session, with its start time, which distinguishes it from a later session
-- with the same process ID, where the role may see it. A prepared transaction has no session: its process ID is 0, and it is
-- never signalled. Only sessions that block at this moment are signalled, and only where the role
-- may. The action is recorded in the audit log, in the same transaction.
-- Index: none, the server's lock table.
-- Race: a session that stopped blocking after it was read is signalled nevertheless.
WITH blocker AS MATERIALIZED (
    SELECT b.pid, coalesce((extract(epoch FROM a.backend_start) * 1000000)::int8, 0) AS started, a.usename::text AS username,
           a.application_name, a.state, a.query,
           (extract(epoch FROM pg_catalog.clock_timestamp() - a.xact_start) * 1000000)::int8 AS age,
           -- A process of the server, such as an autovacuum worker, has no role.
           CASE WHEN b.pid = 0 THEN false
                WHEN coalesce(r.rolsuper, true) THEN (SELECT m.rolsuper FROM pg_catalog.pg_roles AS m WHERE m.rolname = current_user)
                ELSE pg_catalog.pg_has_role(a.usesysid, 'USAGE') OR pg_catalog.pg_has_role('pg_signal_backend', 'USAGE')
           END AS allowed
      FROM (SELECT DISTINCT u.pid FROM unnest(pg_catalog.pg_blocking_pids($2::int8::int4)) AS u (pid)) AS b
      LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = b.pid
      LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = a.usesysid
     WHERE a.pid IS NOT NULL OR b.pid = 0
), signalled AS MATERIALIZED (
    SELECT b.pid, b.username, b.application_name, b.terminate,
           CASE WHEN b.terminate THEN pg_catalog.pg_terminate_backend(b.pid)
                ELSE pg_catalog.pg_cancel_backend(b.pid) END AS done
      FROM (SELECT b.pid, b.username, b.application_name,
                   (b.pid::int8, b.started) IN (SELECT t.pid, t.started FROM unnest($5::int8[], $6::int8[]) AS t (pid, started)) AS terminate
              FROM blocker AS b
             WHERE b.allowed
               AND (b.pid::int8, b.started) IN (SELECT t.pid, t.started FROM unnest($3::int8[], $4::int8[]) AS t (pid, started)
                                                UNION ALL
                                                SELECT t.pid, t.started FROM unnest($5::int8[], $6::int8[]) AS t (pid, started))
            OFFSET 0) AS b
), logged AS (
    INSERT INTO lockapi.audit (namespace, action, target, reason)
    SELECT $1::text, CASE WHEN s.terminate THEN 'terminate session' ELSE 'cancel statement' END,
           s.pid || ' of ' || coalesce(s.username, 'the server') || ', which was in the way of ' || $2::int8, $7::text
      FROM signalled AS s
     WHERE s.done
)
SELECT b.pid::int8 AS pid, b.started, b.username, b.application_name AS application, b.state, b.query AS statement,
       b.age, coalesce(b.allowed, false) AS allowed,
       CASE WHEN s.done AND s.terminate THEN 2 WHEN s.done THEN 1 ELSE 0 END::int8 AS signalled
  FROM blocker AS b
  LEFT JOIN signalled AS s ON s.pid = b.pid
 ORDER BY b.pid
