-- Releases and tries advisory locks of this session, in the order given.
--
-- Promises: one answer for each request; a lock that is tried is taken or not, without waiting;
-- a release of what is not held answers false. All locks taken share one fresh token.
-- Index: none, advisory locks live in the lock table of the server.
-- Race: the token is drawn only after every request has been answered (the aggregate reads the
-- whole of "done"), so it is larger than any token that an earlier holder drew before releasing.
WITH done AS MATERIALIZED (
    SELECT s.n, s.release,
           CASE
               WHEN s.release AND s.pair
                   THEN pg_catalog.pg_advisory_unlock((s.key >> 32)::int4, ((s.key << 32) >> 32)::int4)
               WHEN s.release
                   THEN pg_catalog.pg_advisory_unlock(s.key)
               WHEN s.pair
                   THEN pg_catalog.pg_try_advisory_lock((s.key >> 32)::int4, ((s.key << 32) >> 32)::int4)
               ELSE pg_catalog.pg_try_advisory_lock(s.key)
           END AS ok
      FROM ROWS FROM (unnest($1::int8[]), unnest($2::bool[]), unnest($3::bool[]))
           WITH ORDINALITY AS s (key, pair, release, n)
)
SELECT pg_catalog.array_agg(ok ORDER BY n) AS ok,
       CASE WHEN pg_catalog.bool_or(ok AND NOT release)
            THEN pg_catalog.nextval('lockapi.fence_seq') END AS fence
  FROM done
