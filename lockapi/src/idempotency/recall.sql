-- Reads what was answered to requests.
--
-- Promises: one row for each key whose answer is still kept, by the server's clock.
-- Index: the primary key of answer. Race: none, it only reads; who holds the lease of a key reads the answer of every
-- holder before.
SELECT w.n, a.fingerprint, a.answer
  FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS w (namespace, key, n)
  JOIN lockapi.answer AS a ON a.namespace = w.namespace AND a.key = w.key
                          AND a.namespace = ($1::text[])[1] AND a.key = ANY ($2::text[])
 WHERE a.keep_until > pg_catalog.clock_timestamp()
