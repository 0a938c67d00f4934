-- Completes deliveries and claims jobs of a queue that has no limit, as complete_and_claim.sql does, with the same parameters.
--
-- Promises: if the queue has a limit, it does nothing and returns no row. Other than that as there; the parts for the limit are missing
-- here, which take a sixth of the time of a claim that finds nothing.
-- The row of the queue, which is read in any case, says whether it has one.
-- Index: as there. Race: as there; a limit that is set after this began is for later claims.
WITH start AS MATERIALIZED (
    SELECT pg_catalog.pg_stat_get_xact_tuples_returned('lockapi.job_due'::regclass) AS read,
           CASE WHEN q.paused AND coalesce(q.paused_until > pg_catalog.statement_timestamp(), true)
                THEN coalesce(q.paused_until, 'infinity') END AS paused_until,
           n.names, n.paused_until AS names_until, coalesce(q.limited, false) AS limited
      FROM (SELECT pg_catalog.array_agg(p.name) AS names, pg_catalog.min(p.paused_until) AS paused_until
              FROM (SELECT o.name, o.paused_until
                      FROM lockapi.paused_name AS o
                     WHERE o.namespace = $4::text AND o.queue = $5::text
                       AND coalesce(o.paused_until > pg_catalog.statement_timestamp(), true)
                     ORDER BY o.name) AS p) AS n
      LEFT JOIN lockapi.queue AS q ON q.namespace = $4::text AND q.name = $5::text
), done AS (
    DELETE FROM lockapi.job AS j
     WHERE NOT (SELECT s.limited FROM start AS s)
       AND j.id = ANY ($1::int8[])
       AND ((j.id, j.token) IN (SELECT w.id, w.token FROM unnest($1::int8[], $2::int8[]) AS w (id, token)
                                 WHERE w.token >= (
                                       SELECT CASE WHEN e.number > e.first THEN e.number << 21 ELSE 0 END
                                         FROM lockapi.epoch AS e WHERE e.one))) IS TRUE
    RETURNING j.*
), kept AS (
    INSERT INTO lockapi.job_archive (id, token, status, run_at, created_at, started_at, attempt, max_attempts,
                                     priority, worker, error, namespace, queue, unique_key, name, payload, task,
                                     errors, group_key, headers, expires_at)
    SELECT d.id, d.token, 'completed', d.run_at, d.created_at, d.started_at, d.attempt, d.max_attempts,
           d.priority, d.worker, d.error, d.namespace, d.queue, d.unique_key, d.name, d.payload, d.task, d.errors, d.group_key, d.headers,
           CASE WHEN d.task IS NULL
                THEN pg_catalog.clock_timestamp()
                         + (SELECT pg_catalog.max(w.keep) FROM unnest($1::int8[], $2::int8[], $3::int8[]) AS w (id, token, keep)
                            WHERE w.id = d.id AND w.token = d.token)
                           * interval '1 microsecond' END
      FROM done AS d
     WHERE d.task IS NOT NULL
        OR (d.id, d.token) IN (SELECT w.id, w.token FROM unnest($1::int8[], $2::int8[], $3::int8[]) AS w (id, token, keep)
                                WHERE w.keep >= 0)
), found AS MATERIALIZED (
    SELECT p.id, p.size, p.expired OR (p.last AND NOT p.found) AS last
      FROM start AS s
     CROSS JOIN unnest($7::int8[], $8::int8[], $10::int8[]) AS level (priority, floor_at, floor_id)
     CROSS JOIN LATERAL (
           SELECT j.id, j.size, j.attempt >= j.max_attempts AS last,
                  j.attempt = 0 AND coalesce(j.expires_at <= pg_catalog.clock_timestamp(), false) AS expired,
                  j.token IS NOT NULL AND coalesce(j.claim = ANY ($13::int8[]), false) AS found
             FROM lockapi.job AS j
            WHERE s.read IS NOT NULL
              AND j.namespace = $4::text AND j.queue = $5::text AND j.priority = level.priority
              AND j.run_at <= pg_catalog.statement_timestamp()
              AND (pg_catalog.cardinality($14::text[]) = 0 OR j.name = ANY ($14::text[]))
              AND (s.names IS NULL OR j.name <> ALL (s.names))
              AND (j.run_at, j.id + 0) > (timestamptz 'epoch' + level.floor_at * interval '1 microsecond', level.floor_id)
              AND (j.lease_until IS NULL
                   OR ((j.lease_until <= pg_catalog.clock_timestamp() OR j.claim = ANY ($13::int8[]))
                       AND j.id <> ALL ($1::int8[])))
            ORDER BY j.run_at, j.id + 0
            LIMIT $9::int8
              FOR UPDATE OF j SKIP LOCKED) AS p
     WHERE s.paused_until IS NULL AND NOT s.limited
     LIMIT $9::int8
), picked AS MATERIALIZED (
    SELECT o.id, o.last
      FROM (SELECT f.id, f.last, pg_catalog.sum(f.size) OVER (ROWS UNBOUNDED PRECEDING) - f.size AS before
              FROM found AS f) AS o
     WHERE o.before < $15::int8
), total AS MATERIALIZED (
    SELECT CASE WHEN p.n < f.n THEN $9::int8 ELSE f.n END AS n
      FROM (SELECT pg_catalog.count(*) AS n FROM found) AS f
     CROSS JOIN (SELECT pg_catalog.count(*) AS n FROM picked) AS p
), buried AS (
    DELETE FROM lockapi.job AS j
     WHERE j.id = ANY (ARRAY(SELECT p.id FROM picked AS p WHERE p.last))
    RETURNING j.*
), dead AS (
    INSERT INTO lockapi.job_archive (id, token, status, run_at, created_at, started_at, attempt, max_attempts,
                                     priority, worker, error, namespace, queue, unique_key, name, payload, task,
                                     errors, group_key, headers, expires_at)
    SELECT b.id, b.token, 'failed', b.run_at, b.created_at, b.started_at, b.attempt, b.max_attempts,
           b.priority, b.worker, r.reason, b.namespace, b.queue, b.unique_key, b.name, b.payload, b.task,
           coalesce(CASE WHEN pg_catalog.jsonb_array_length(b.errors) >= 10 THEN b.errors - 0 ELSE b.errors END, '[]')
               || pg_catalog.jsonb_build_object(
                      'attempt', b.attempt, 'at', (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::int8,
                      'worker', b.worker, 'error', pg_catalog."left"(r.reason, 1000)),
           b.group_key, b.headers,
           CASE WHEN b.task IS NULL AND $16::int8 >= 0
                THEN pg_catalog.clock_timestamp() + $16::int8 * interval '1 microsecond' END
      FROM buried AS b
     CROSS JOIN LATERAL (
           SELECT CASE WHEN b.attempt = 0 THEN 'it was not delivered in time'
                       ELSE 'the lease of the last attempt ended without an answer' END AS reason) AS r
), claimed AS (
    UPDATE lockapi.job AS j
       SET token = pg_catalog.nextval('lockapi.delivery_seq'),
           claim = $12::int8,
           lease_until = pg_catalog.clock_timestamp() + $6::int8 * interval '1 microsecond',
           started_at = pg_catalog.clock_timestamp(),
           attempt = j.attempt + CASE WHEN j.token IS NOT NULL AND j.claim = ANY ($13::int8[]) THEN 0 ELSE 1 END,
           worker = $11::text,
           errors = CASE WHEN j.token IS NULL OR j.claim = ANY ($13::int8[]) THEN j.errors
                         ELSE coalesce(CASE WHEN pg_catalog.jsonb_array_length(j.errors) >= 10 THEN j.errors - 0 ELSE j.errors END, '[]')
                             || pg_catalog.jsonb_build_object(
                                    'attempt', j.attempt, 'at', (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::int8,
                                    'worker', j.worker, 'error', pg_catalog."left"('its lease ended without an answer', 1000)) END
     WHERE j.id = ANY (ARRAY(SELECT p.id FROM picked AS p WHERE NOT p.last))
    RETURNING j.id, j.token, j.attempt, j.max_attempts, j.priority, j.run_at, j.created_at, j.name, j.payload, j.headers, j.group_key
)
SELECT pg_catalog.row_number() OVER (ORDER BY pg_catalog.array_position($7::int8[], c.priority::int8), c.run_at, c.id) AS n,
       c.id, c.token, c.attempt::int8, c.max_attempts::int8, c.priority::int8,
       (extract(epoch FROM c.run_at) * 1000000)::int8 AS run_at,
       (extract(epoch FROM c.created_at) * 1000000)::int8 AS created_at,
       c.name, c.payload::text AS payload, NULL::int8[] AS completed, c.headers::text AS headers, c.group_key
  FROM claimed AS c
 UNION ALL
SELECT NULL, t.n,
       CASE WHEN s.paused_until IS NULL
            THEN pg_catalog.pg_stat_get_xact_tuples_returned('lockapi.job_due'::regclass) - s.read END,
       CASE WHEN t.n < $9::int8
            THEN (SELECT pg_catalog.count(*)
                    FROM (SELECT
                            FROM lockapi.job AS j
                           WHERE j.namespace COLLATE "POSIX" = $4::text AND j.queue COLLATE "POSIX" = $5::text
                             AND j.due_at IS NOT NULL
                           ORDER BY j.group_key
                           LIMIT 1) AS p) END,
       pg_catalog.hashtextextended(s.names::text, 0), NULL,
       CASE WHEN t.n < $9::int8
            THEN least(CASE WHEN s.paused_until < 'infinity'
                            THEN (extract(epoch FROM s.paused_until - pg_catalog.statement_timestamp()) * 1000000)::int8 END,
                 (extract(epoch FROM s.names_until - pg_catalog.statement_timestamp()) * 1000000)::int8,
                 (SELECT (extract(epoch FROM pg_catalog.min(f.run_at) - pg_catalog.statement_timestamp()) * 1000000)::int8
                    FROM unnest($7::int8[]) AS level (priority)
                   CROSS JOIN LATERAL (
                         SELECT j.run_at
                           FROM lockapi.job AS j
                          WHERE j.namespace = $4::text AND j.queue = $5::text AND j.priority = level.priority
                            AND j.run_at > pg_catalog.statement_timestamp() AND j.run_at < timestamptz '10000-01-01 00:00:00+00'
                          ORDER BY j.run_at
                          LIMIT 1) AS f)) END,
       (extract(epoch FROM pg_catalog.statement_timestamp()) * 1000000)::int8, NULL, NULL, (SELECT pg_catalog.array_agg(d.id) || pg_catalog.array_agg(d.token) FROM done AS d), NULL, NULL
  FROM total AS t
 CROSS JOIN start AS s
 WHERE NOT s.limited
