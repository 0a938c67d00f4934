-- Reads who waits for whom: for locks of the namespace $1, or for the one lock $2, $3, or (NULL) for
-- any lock of the server.
--
-- Promises: at most $4 rows, one for each session that blocks a waiting session, the longest wait first. Statements of
-- sessions, which may have data in them, are returned with $5 only.
-- Index: the primary key of lock_name. Race: none, it only reads; the answer may be old on arrival.
SELECT w.namespace, w.name, w.mode, w.owner, w.application, w.username, w.pid::int8 AS pid,
       CASE WHEN $5::bool THEN w.statement END AS statement,
       (extract(epoch FROM w.waits_for) * 1000000)::int8 AS waits_for,
       w.blocker_pid::int8 AS blocker_pid, w.blocker_application, w.blocker_username, w.blocker_state,
       CASE WHEN $5::bool THEN w.blocker_statement END AS blocker_statement,
       (extract(epoch FROM w.blocker_transaction_age) * 1000000)::int8 AS blocker_transaction_age
  FROM lockapi.wait_view AS w
 WHERE CASE WHEN $2::int8 IS NOT NULL THEN w.lock_key = $2::int8 AND w.pair = $3::bool
            ELSE $1::text IS NULL OR w.namespace = $1::text END
 ORDER BY w.since, w.pid, w.name, w.blocker_pid
 LIMIT $4::int8
