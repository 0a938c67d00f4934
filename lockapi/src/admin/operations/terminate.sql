-- Terminates the sessions that hold the advisory lock $2, $3, named $4, for the reason $5.
--
-- Promises: a row for each session that holds it. "allowed" is false, and the session is not terminated, if
-- the role may not terminate sessions of that session's role. The action is recorded in the audit log, in the
-- same transaction.
-- Index: none, advisory locks are kept in the lock table of the server.
-- Race: a session that released the lock since it was read is terminated nevertheless. The permissions are
-- those of the server: sessions of superusers are terminated by superusers only, other sessions by members of
-- their role or of pg_signal_backend.
WITH holder AS MATERIALIZED (
    -- It may hold the lock in both modes.
    SELECT DISTINCT a.pid, a.usename::text AS username, a.application_name,
           CASE WHEN r.rolsuper THEN (SELECT m.rolsuper FROM pg_catalog.pg_roles AS m WHERE m.rolname = current_user)
                ELSE pg_catalog.pg_has_role(a.usesysid, 'USAGE') OR pg_catalog.pg_has_role('pg_signal_backend', 'USAGE')
           END AS allowed
      FROM pg_catalog.pg_locks AS l
      JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
      JOIN pg_catalog.pg_roles AS r ON r.oid = a.usesysid
     WHERE l.locktype = 'advisory' AND l.granted AND l.pid <> pg_catalog.pg_backend_pid()
       AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database())
       AND (l.classid::int8 << 32) | l.objid::int8 = $2::int8
       AND l.objsubid = CASE WHEN $3::bool THEN 2 ELSE 1 END
), ended AS MATERIALIZED (
    SELECT h.pid, pg_catalog.pg_terminate_backend(h.pid) AS done
      FROM holder AS h
     WHERE h.allowed
), logged AS (
    INSERT INTO lockapi.audit (namespace, action, target, reason)
    SELECT $1::text, 'terminate session', h.pid || ' of ' || h.username || ', which held ' || $4::text, $5::text
      FROM holder AS h
      JOIN ended AS e ON e.pid = h.pid AND e.done
)
SELECT h.pid::int8 AS pid, h.username, h.application_name AS application, h.allowed,
       coalesce(e.done, false) AS ended
  FROM holder AS h
  LEFT JOIN ended AS e ON e.pid = h.pid
 ORDER BY h.pid
