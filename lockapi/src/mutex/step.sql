-- Releases and tries advisory locks of this session, in the order given.
--
-- What to do is a number: 0 takes the lock alone, 1 releases it, 2 takes it shared, 3 releases it
-- as shared; 4 to 7 are the same for a pair of int4.
-- Promises: one answer for each request, in its order, because a single scan of the requests feeds
-- the aggregate; a lock that is tried is taken or not, without waiting; a release of what is not
-- held answers false. All locks taken alone share one fresh token; those who share a lock are not
-- told apart, and get none.
-- Index: none, advisory locks live in the lock table of the server.
-- Race: the token is drawn when the aggregates are complete, hence after every lock was taken, so
-- it is larger than any token that an earlier holder drew before releasing. OFFSET keeps the inner
-- query whole, so no request is carried out twice.
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
        OFFSET 0) AS d
