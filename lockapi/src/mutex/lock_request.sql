-- Releases and tries advisory locks of this session, in the given order.
--
-- The action is a number: 0 takes the lock exclusively, 1 releases it, 2 takes it shared, 3 releases it as
-- shared; 4 to 7 are the same for a pair of int4.
-- Promises: one result for each request, in its order, because a single scan of the requests feeds the
-- aggregate. A lock that is tried is taken or not, without waiting. The release of a lock that is not held
-- returns false. All locks taken exclusively share one new token. Holders of a shared lock are not
-- distinguished, and get no token. No row, and nothing done, where the session does not have the mark $3: a
-- pooler that began to share sessions has sent the statement to another.
-- Index: none, advisory locks are kept in the lock table of the server.
-- Race: the token is drawn when the aggregates are complete, hence after every lock was taken, so it is larger
-- than any token that an earlier holder drew before releasing. OFFSET prevents the inner query from being
-- pulled up, so no request is executed twice.
SELECT pg_catalog.array_agg(d.ok) AS ok,
       CASE WHEN pg_catalog.bool_or(d.ok AND d.what IN (0, 4))
            THEN pg_catalog.nextval('lockapi.fence_seq') END AS fence
  FROM (SELECT s.what,
               CASE s.what
                   WHEN 0 THEN pg_catalog.pg_try_advisory_lock(s.key)
                   WHEN 1 THEN pg_catalog.pg_advisory_unlock(s.key)
                   WHEN 2 THEN pg_catalog.pg_try_advisory_lock_shared(s.key)
                   WHEN 3 THEN pg_catalog.pg_advisory_unlock_shared(s.key)
                   WHEN 4 THEN pg_catalog.pg_try_advisory_lock((s.key >> 32)::int4, ((s.key << 32) >> 32)::int4)
                   WHEN 5 THEN pg_catalog.pg_advisory_unlock((s.key >> 32)::int4, ((s.key << 32) >> 32)::int4)
                   WHEN 6 THEN pg_catalog.pg_try_advisory_lock_shared((s.key >> 32)::int4, ((s.key << 32) >> 32)::int4)
                   WHEN 7 THEN pg_catalog.pg_advisory_unlock_shared((s.key >> 32)::int4, ((s.key << 32) >> 32)::int4)
               END AS ok
          FROM ROWS FROM (unnest($1::int8[]), unnest($2::int8[])) AS s (key, what)
         WHERE pg_catalog.current_setting('lockapi.session', true) = pg_catalog.pg_backend_pid() || ' ' || $3::int8
        OFFSET 0) AS d
HAVING pg_catalog.current_setting('lockapi.session', true) = pg_catalog.pg_backend_pid() || ' ' || $3::int8
