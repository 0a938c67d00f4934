-- Changes those of the jobs $3 of the queue $2 of the namespace $1 that wait, for the reason $4: due at $5, if that is not
-- negative, with the priority $6, if that is not negative, the maximum number of deliveries $7, if it is not 0, and the
-- payload $8, if that is not empty. Where $11 is not negative: only one that is as somebody saw it, due at $11, with the
-- priority $12, the maximum number of deliveries $13, $14 deliveries, and a payload whose first $17 characters are $15, unless
-- that is empty. Where $16 is true: not those that have all that already, which are found again after they were moved. Only
-- those with the name $18, in the group $19 and with the tag $20, each unless it is empty.
--
-- Promises: what is due keeps its place, unless it gets another priority; otherwise it is due now or later, as one that is
-- pushed, so claims that have gone on find it. One of a group that is due later is parked, and leaves its place in the
-- group. Its time to live begins when it is due. Returns how many are changed, how many are locked, how many are left as they
-- are because they have been delivered as often as $7, with the most deliveries of these, and how many because of $16; all others
-- run, have expired, are not as they were seen or are not there. The action is recorded in the audit log, for each job, with $10, and the listeners of the topics in $9 are notified, in the same
-- transaction.
-- Where nothing is found, it may have been done by a session that ended while its commit waited for a standby: the
-- statement writes to the WAL, so that its commit waits for that too.
-- Index: job_pkey; the collation keeps job_due from fitting.
-- Race: of a claim and an edit, the one that locks the row first takes effect: whether it waits, and is as it was seen or looked
-- for, is read on the locked row. Rows that a claim, an admission or a transaction has locked are skipped and counted.
WITH held AS MATERIALIZED (
    SELECT j.id, j.attempt, j.priority, coalesce(j.due_at, j.run_at) AS due,
           j.token IS NULL
               AND NOT (j.attempt = 0 AND coalesce(j.expires_at <= pg_catalog.clock_timestamp(), false)) AS waits,
           $7::int8 > 0 AND j.attempt >= $7::int8 AS used_up,
           $11::int8 < 0
               OR (extract(epoch FROM coalesce(j.due_at, j.run_at)) * 1000000)::int8 = $11::int8
                  AND j.priority = $12::int8 AND j.max_attempts = $13::int8 AND j.attempt = $14::int8
                  AND CASE WHEN $15::text = '' THEN '' ELSE pg_catalog.left(j.payload::text, $17::int8::int4) END = $15::text AS as_seen,
           $16::bool
               AND ($6::int8 < 0 OR j.priority = $6::int8) AND ($7::int8 <= 0 OR j.max_attempts = $7::int8)
               AND ($8::text = '' OR CASE WHEN $16::bool THEN j.payload::text END = $8::text) AS has_rest
      FROM lockapi.job AS j
     WHERE j.id = ANY ($3::int8[])
       AND j.namespace COLLATE "POSIX" = $1::text AND j.queue COLLATE "POSIX" = $2::text
       AND ($18::text = '' OR (j.name = $18::text) IS TRUE) AND ($19::text = '' OR (j.group_key = $19::text) IS TRUE)
       AND ($20::text = '' OR ($20::text = ANY (pg_catalog.string_to_array(j.headers ->> 'tags', ','))) IS TRUE)
       FOR UPDATE OF j SKIP LOCKED
), wanted AS MATERIALIZED (
    SELECT h.id, h.due AS before, t.moved, d.due, h.has_rest AND d.due = h.due AS same
      FROM held AS h
     CROSS JOIN LATERAL (
           SELECT w.at, $5::int8 >= 0 AND greatest(h.due, w.at) > pg_catalog.statement_timestamp() AS moved
             FROM (SELECT timestamptz 'epoch' + $5::int8 * interval '1 microsecond' AS at) AS w) AS t
     CROSS JOIN LATERAL (
           SELECT CASE WHEN t.moved THEN greatest(t.at, pg_catalog.statement_timestamp())
                       WHEN $6::int8 >= 0 AND $6::int8 <> h.priority THEN greatest(h.due, pg_catalog.statement_timestamp())
                       ELSE h.due END AS due) AS d
     WHERE h.waits AND h.as_seen AND NOT h.used_up
), edited AS (
    UPDATE lockapi.job AS j
       SET run_at = CASE WHEN j.due_at IS NOT NULL OR j.group_key IS NOT NULL AND w.due > pg_catalog.statement_timestamp()
                         THEN timestamptz '20000-01-01 00:00:00+00' ELSE w.due END,
           due_at = CASE WHEN j.due_at IS NOT NULL OR j.group_key IS NOT NULL AND w.due > pg_catalog.statement_timestamp()
                         THEN w.due END,
           expires_at = CASE WHEN w.moved
                             THEN w.due + (extract(epoch FROM j.expires_at - CASE WHEN j.expires_at <= w.before
                                                                                       OR j.group_key IS NOT NULL AND j.due_at IS NULL
                                                                                  THEN j.created_at
                                                                                  ELSE w.before END) * 1000000)::int8 * interval '1 microsecond'
                             ELSE j.expires_at END,
           priority = CASE WHEN $6::int8 >= 0 THEN $6::int8 ELSE j.priority END,
           max_attempts = CASE WHEN $7::int8 > 0 THEN $7::int8 ELSE j.max_attempts END,
           payload = CASE WHEN $8::text <> '' THEN $8::json ELSE j.payload END
      FROM wanted AS w
     WHERE j.id = w.id AND NOT w.same AND j.id = ANY (ARRAY(SELECT o.id FROM wanted AS o))
    RETURNING j.id, j.name, j.queue
), logged AS (
    INSERT INTO lockapi.audit (namespace, action, target, reason)
    SELECT $1::text, 'edit job', e.id || ' (' || e.name || ') of ' || e.queue || ': ' || $10::text, $4::text FROM edited AS e
)
SELECT e.n AS edited, l.n AS locked, u.n AS used_up, u.attempt,
       (SELECT pg_catalog.count(*) FROM wanted AS w WHERE w.same) AS same,
       (SELECT pg_catalog.count(pg_catalog.pg_notify('lockapi', t.topic::text))
          FROM unnest($9::int8[]) AS t (topic)
         WHERE e.n > 0) AS told,
       CASE WHEN h.n = 0 AND l.n = 0 THEN pg_catalog.pg_logical_emit_message(true, 'lockapi', '') IS NULL END AS written
  FROM (SELECT pg_catalog.count(*) AS n FROM edited) AS e
 CROSS JOIN (SELECT pg_catalog.count(*) AS n FROM held) AS h
 CROSS JOIN (SELECT pg_catalog.count(*) AS n, pg_catalog.max(o.attempt)::int8 AS attempt
               FROM held AS o
              WHERE o.waits AND o.as_seen AND o.used_up) AS u
 CROSS JOIN (SELECT pg_catalog.count(*) AS n
               FROM lockapi.job AS j
              WHERE j.id = ANY ($3::int8[]) AND j.id <> ALL (ARRAY(SELECT o.id FROM held AS o))
                AND j.namespace COLLATE "POSIX" = $1::text AND j.queue COLLATE "POSIX" = $2::text
                AND ($18::text = '' OR (j.name = $18::text) IS TRUE) AND ($19::text = '' OR (j.group_key = $19::text) IS TRUE)
                AND ($20::text = '' OR ($20::text = ANY (pg_catalog.string_to_array(j.headers ->> 'tags', ','))) IS TRUE)) AS l
