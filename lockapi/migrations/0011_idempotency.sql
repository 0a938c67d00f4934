-- Idempotency keys: what was answered to the request with a key, so that it can be answered again. A row is written
-- once, by who held the lease of the key, and is as good as none when its time is over: then it is swept.
--
-- No index mentions a time. The primary key begins with the key: the array of a batch then is a condition of the
-- index, whatever statistics say.

SET LOCAL search_path = pg_catalog, pg_temp;

CREATE TABLE lockapi.answer (
    namespace   text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    fence       int8             NOT NULL,
    fingerprint bytea            NOT NULL,
    answer      bytea            NOT NULL,
    answered_at timestamptz      NOT NULL,
    keep_until  timestamptz      NOT NULL,
    CONSTRAINT answer_pkey PRIMARY KEY (key, namespace)
);

COMMENT ON TABLE lockapi.answer IS 'What was answered to requests with idempotency keys.';
COMMENT ON COLUMN lockapi.answer.namespace IS 'Namespace of the backend.';
COMMENT ON COLUMN lockapi.answer.key IS 'The idempotency key.';
COMMENT ON COLUMN lockapi.answer.fence IS 'Fencing token of who answered.';
COMMENT ON COLUMN lockapi.answer.fingerprint IS 'SHA-256 of the request.';
COMMENT ON COLUMN lockapi.answer.answer IS 'The answer, in the form of the program.';
COMMENT ON COLUMN lockapi.answer.answered_at IS 'When it was answered.';
COMMENT ON COLUMN lockapi.answer.keep_until IS 'Until when the answer is given again.';
