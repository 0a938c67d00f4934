-- Releases and tries advisory locks of this session, in the order given.
--
-- Promises: one answer for each request, in its order, because a single scan of the requests feeds
-- the aggregate; a lock that is tried is taken or not, without waiting; a release of what is not
-- held answers false. All locks taken share one fresh token.
-- Index: none, advisory locks live in the lock table of the server.
-- Race: the token is drawn when the aggregates are complete, hence after every lock was taken, so
-- it is larger than any token that an earlier holder drew before releasing. OFFSET keeps the inner
-- query whole, so no request is carried out twice.
SELECT pg_catalog.array_agg(d.ok) AS ok,
       CASE WHEN pg_catalog.bool_or(d.ok AND NOT d.release)
            THEN pg_catalog.nextval('lockapi.fence_seq') END AS fence
  FROM (SELECT s.release,
               CASE
                   WHEN s.release AND s.pair
                       THEN pg_catalog.pg_advisory_unlock((s.key >> 32)::int4, ((s.key << 32) >> 32)::int4)
                   WHEN s.release
                       THEN pg_catalog.pg_advisory_unlock(s.key)
                   WHEN s.pair
                       THEN pg_catalog.pg_try_advisory_lock((s.key >> 32)::int4, ((s.key << 32) >> 32)::int4)
                   ELSE pg_catalog.pg_try_advisory_lock(s.key)
               END AS ok
          FROM ROWS FROM (unnest($1::int8[]), unnest($2::bool[]), unnest($3::bool[])) AS s (key, pair, release)
        OFFSET 0) AS d
