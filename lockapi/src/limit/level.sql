-- Reads the state of limits.
--
-- Promises: one row for each key, with zeros where there is none, and the server's time.
-- Index: the primary key of rate_limit. Race: none, it only reads; the answer may be old on arrival.
SELECT w.n, coalesce(l.at, 0) AS at, coalesce(l.tat, 0) AS tat, coalesce(l.started, 0) AS started,
       coalesce(l.span, 0) AS span, coalesce(l.used, 0) AS used, coalesce(l.before, 0) AS before,
       coalesce(l.slide, 0) AS slide, coalesce(l.blocked_until, 0) AS blocked_until,
       coalesce(l.due, 9223372036854775807) AS due, lockapi.clock() AS now
  FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS w (namespace, key, n)
  LEFT JOIN lockapi.rate_limit AS l ON l.namespace = w.namespace AND l.key = w.key
                                   AND l.namespace = ($1::text[])[1] AND l.key = ANY ($2::text[])
