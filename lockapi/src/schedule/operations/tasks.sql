-- Reads tasks with the time of the server: the one named $3, or all if $3 is empty, at most $5 after the name
-- $4. A last row without a name has only the time.
--
-- Index: task_pkey. Race: none, it only reads.
(SELECT t.name, t.version, (extract(epoch FROM t.next_at) * 1000000)::int8 AS next_at,
        (extract(epoch FROM pg_catalog.statement_timestamp()) * 1000000)::int8 AS now,
        t.enabled, t.every, t.cron, t.zone, t.timeout, t.misfire, t.misfire_most, t.overlap,
        t.max_attempts::int8, t.priority::int8, t.job, t.payload::text AS payload,
        (SELECT (extract(epoch FROM pg_catalog.max(r.fire_at)) * 1000000)::int8
           FROM lockapi.task_run AS r
          WHERE r.namespace = t.namespace AND r.scheduler = t.scheduler AND r.task = t.name) AS last_at
   FROM lockapi.task AS t
  WHERE t.namespace = $1::text AND t.scheduler = $2::text AND t.name > $4::text
    AND ($3::text = '' OR t.name = $3::text)
  ORDER BY t.name
  LIMIT $5::int8)
 UNION ALL
SELECT NULL, NULL, NULL, (extract(epoch FROM pg_catalog.statement_timestamp()) * 1000000)::int8,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
