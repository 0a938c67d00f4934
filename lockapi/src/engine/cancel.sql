-- Cancels the statements of sessions whose client no longer waits: process $1 that began at $2, in
-- microseconds.
--
-- Promises: only the intended session is signalled, and only while this library uses it: a connection that
-- was returned to the pool of its program has its own name again, and is not affected. Returns how many
-- sessions were signalled.
-- One whose commit waits for a standby is signalled as well: it would keep its connection as long as the standby is
-- away, and each caller that tries again would leave another one. What it did is visible then, and may be lost with
-- the server, so a statement that answers that something was done before writes to the WAL (see recall.sql).
-- It is sent before the session has the library's settings: what it names is named in full.
-- Index: none. Race: the statement of a session may end at the moment when the session is signalled. Then its
-- next statement fails, if its client sends one, or it finds the connection closed.
SELECT pg_catalog.count(*) FILTER (WHERE c.told) AS cancelled
  FROM (SELECT pg_catalog.pg_cancel_backend(a.pid) AS told
          FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.int8[]), pg_catalog.unnest($2::pg_catalog.int8[])) AS p (pid, started)
         CROSS JOIN LATERAL pg_catalog.pg_stat_get_activity(p.pid::pg_catalog.int4) AS a
         WHERE a.backend_start OPERATOR(pg_catalog.=)
                   (pg_catalog.timestamptz 'epoch' OPERATOR(pg_catalog.+)
                    (p.started OPERATOR(pg_catalog.*) pg_catalog.interval '1 microsecond'))
           AND a.state OPERATOR(pg_catalog.=) 'active'
           AND a.application_name OPERATOR(pg_catalog.~~) '% lockapi'
        OFFSET 0) AS c
