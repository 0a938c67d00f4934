-- Records the answer to one request inside the transaction of its effect.
--
-- Promises: the answer is recorded only while slot $3 of the lease $2 has the token $4, and where the key $5 has no
-- answer of another. Until the transaction ends nobody else acquires the lease, while its holder can
-- still renew and release it. A request that is repeated with the same token changes its own answer.
-- Index: the primary keys of lease and answer.
-- Race: FOR KEY SHARE conflicts with the FOR UPDATE of an acquisition, and the predicate is evaluated on the locked row.
-- Two that record for one key conflict at ON CONFLICT, where the second waits for the first to end and is evaluated on
-- its row.
WITH held AS MATERIALIZED (
    SELECT l.fence
      FROM lockapi.lease AS l
     WHERE l.namespace OPERATOR(pg_catalog.=) $1::pg_catalog.text AND l.key OPERATOR(pg_catalog.=) $2::pg_catalog.text
       AND l.slot OPERATOR(pg_catalog.=) $3::pg_catalog.int8
       AND l.fence OPERATOR(pg_catalog.=) $4::pg_catalog.int8
       AND l.released_at IS NULL
       AND l.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
       FOR KEY SHARE OF l
), recorded AS (
    INSERT INTO lockapi.answer AS a (namespace, key, fence, fingerprint, answer, answered_at, keep_until)
    SELECT $1::pg_catalog.text, $5::pg_catalog.text, h.fence, $6::pg_catalog.bytea, $7::pg_catalog.bytea,
           pg_catalog.clock_timestamp(),
           pg_catalog.clock_timestamp()
               OPERATOR(pg_catalog.+) ($8::pg_catalog.int8 OPERATOR(pg_catalog.*) interval '1 microsecond')
      FROM held AS h
    ON CONFLICT (key, namespace) DO UPDATE
       SET fence = excluded.fence, fingerprint = excluded.fingerprint, answer = excluded.answer,
           answered_at = excluded.answered_at, keep_until = excluded.keep_until
     WHERE a.keep_until OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()
        OR a.fence OPERATOR(pg_catalog.=) excluded.fence
    RETURNING true AS recorded
)
SELECT EXISTS (SELECT FROM recorded) AS recorded
