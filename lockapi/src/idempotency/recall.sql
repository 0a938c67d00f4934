-- Reads what was answered to requests.
--
-- Promises: one row for each key whose answer is still kept, by the server's clock. An answer that is returned is as
-- durable as a new one: it may be one whose session ended while its commit waited for a standby, which everybody
-- sees, and which a promotion may lose. So the statement writes to the WAL where it returns one, and its commit
-- waits for everything that was written before.
-- Index: the primary key of answer. Race: none; who holds the lease of a key reads the answer of every holder before.
SELECT w.n, a.fingerprint,
       CASE WHEN (SELECT pg_catalog.pg_logical_emit_message(true, 'lockapi', '')) IS NOT NULL THEN a.answer END AS answer
  FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS w (namespace, key, n)
  JOIN lockapi.answer AS a ON a.namespace = w.namespace AND a.key = w.key
                          AND a.namespace = ($1::text[])[1] AND a.key = ANY ($2::text[])
 WHERE a.keep_until > pg_catalog.clock_timestamp()
