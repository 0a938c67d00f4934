-- Headers of a job: texts by name, for what belongs to a job and not to its payload, such as the context of a trace.
--
-- They are NULL without any, so the row of a job without headers, and its log, are as before. No statement searches for
-- them, so they have no index.

SET LOCAL search_path = pg_catalog, pg_temp;

ALTER TABLE lockapi.job ADD COLUMN headers jsonb;
ALTER TABLE lockapi.job_archive ADD COLUMN headers jsonb;

COMMENT ON COLUMN lockapi.job.headers IS 'Its headers: an object of texts; NULL: none.';
COMMENT ON COLUMN lockapi.job_archive.headers IS 'The headers that it had.';

-- Pushes a job with headers: an object of at most 32 texts. Names are stored in lower case.
--
-- Promises, index and race: those of lockapi.push() (see 0010_push.sql and 0013_corrections.sql). That one stays as it is,
-- for what calls it and who may execute it: a function of the same name would make calls of it ambiguous.
CREATE FUNCTION lockapi.push_with_headers(
    queue text, name text, payload json, headers jsonb,
    namespace text DEFAULT 'default', priority text DEFAULT 'normal', delay interval DEFAULT '0',
    at timestamptz DEFAULT NULL, max_attempts int4 DEFAULT 20, ttl interval DEFAULT '0',
    group_key text DEFAULT NULL, unique_key text DEFAULT NULL, idempotency_key text DEFAULT NULL,
    notify bool DEFAULT true) RETURNS int8
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
    #variable_conflict use_column
    DECLARE
        never constant timestamptz := '20000-01-01 00:00:00+00';
        level constant int4 := array_position(ARRAY['urgent', 'high', 'normal', 'low'], push_with_headers.priority) - 1;
        most_seconds constant float8 := 3660 * 86400;
        -- Of months and days as well, whose length would depend on the date and the time zone.
        delay_seconds constant float8 := extract(epoch FROM push_with_headers.delay);
        ttl_seconds constant float8 := extract(epoch FROM push_with_headers.ttl);
        wrong text;
        due timestamptz;
        expires timestamptz;
        kept jsonb;
        number int8;
        found_expired bool;
    BEGIN
        wrong := (SELECT format('the %s has %s bytes; allowed are 1 to 255 bytes', c.what, coalesce(octet_length(c.value), 0))
                    FROM (VALUES ('name of the queue', push_with_headers.queue, true), ('name', push_with_headers.name, true),
                                 ('group', push_with_headers.group_key, false), ('unique key', push_with_headers.unique_key, false),
                                 ('idempotency key', push_with_headers.idempotency_key, false)) AS c (what, value, needed)
                   WHERE coalesce(octet_length(c.value), CASE WHEN c.needed THEN 0 ELSE 1 END) NOT BETWEEN 1 AND 255
                   LIMIT 1);
        wrong := CASE
            WHEN wrong IS NOT NULL THEN wrong
            WHEN coalesce(octet_length(push_with_headers.namespace), 256) > 255
            THEN 'the namespace is NULL or has more than 255 bytes; allowed are at most 255 bytes'
            WHEN push_with_headers.payload IS NULL OR octet_length(push_with_headers.payload::text) > 16777216
            THEN 'the payload is NULL or has more than 16 MiB; allowed is one JSON value of at most 16777216 bytes'
            WHEN level IS NULL
            THEN format('a priority of %L; allowed are urgent, high, normal and low', push_with_headers.priority)
            WHEN delay_seconds NOT BETWEEN 0 AND most_seconds IS NOT FALSE
            THEN format('a delay of %s; allowed are 0 to 3660 days', coalesce(push_with_headers.delay::text, 'NULL'))
            WHEN ttl_seconds NOT BETWEEN 0 AND most_seconds IS NOT FALSE
            THEN format('a ttl of %s; allowed are 0, which means for ever, to 3660 days', coalesce(push_with_headers.ttl::text, 'NULL'))
            WHEN push_with_headers.at >= timestamptz '10000-01-01 00:00:00+00'
            THEN 'a time after the year 9999; allowed are earlier times'
            WHEN push_with_headers.max_attempts NOT BETWEEN 1 AND 1000000 IS NOT FALSE
            THEN format('max_attempts of %s; allowed are 1 to 1000000', coalesce(push_with_headers.max_attempts::text, 'NULL'))
            WHEN starts_with(push_with_headers.unique_key, 'task/')
            THEN format('the unique key %L; allowed are those that do not begin with task/, as those of runs of tasks do', push_with_headers.unique_key)
            WHEN push_with_headers.unique_key IS NOT NULL AND push_with_headers.idempotency_key IS NOT NULL
            THEN 'the job has a unique key and an idempotency key; allowed is one of them'
            WHEN jsonb_typeof(push_with_headers.headers) <> 'object'
            THEN format('the headers are a JSON %s; allowed is an object of texts', jsonb_typeof(push_with_headers.headers))
        END;
        IF wrong IS NULL AND push_with_headers.headers IS NOT NULL THEN
            SELECT (array_agg(c.wrong ORDER BY h.n) FILTER (WHERE c.wrong IS NOT NULL))[1],
                   jsonb_object_agg(lower(h.name COLLATE "C"), h.value)
              INTO wrong, kept
              FROM (SELECT e.key AS name, e.value, e.value #>> '{}' AS text, e.n,
                           count(*) OVER () AS many,
                           count(*) OVER (PARTITION BY lower(e.key COLLATE "C")) AS alike,
                           sum(octet_length(e.key) + octet_length(e.value #>> '{}')) OVER () AS bytes
                      FROM jsonb_each(push_with_headers.headers) WITH ORDINALITY AS e (key, value, n)) AS h
             CROSS JOIN LATERAL (SELECT CASE
                   WHEN h.many > 32
                   THEN format('%s headers; allowed are at most 32', h.many)
                   WHEN octet_length(h.name) NOT BETWEEN 1 AND 64
                   THEN format('the name of a header has %s bytes; allowed are 1 to 64 bytes of visible ASCII', octet_length(h.name))
                   WHEN h.name COLLATE "C" !~ '^[!-~]+$'
                   THEN format('the name of a header is %L; allowed are 1 to 64 bytes of visible ASCII', h.name)
                   WHEN h.alike > 1
                   THEN format('two headers are named %L; allowed is one, in whatever case', lower(h.name COLLATE "C"))
                   WHEN jsonb_typeof(h.value) <> 'string'
                   THEN format('the value of the header %L is a JSON %s; allowed are texts', h.name, jsonb_typeof(h.value))
                   WHEN octet_length(h.text) > 1024
                   THEN format('the value of the header %L has %s bytes; allowed are at most 1024 bytes', h.name, octet_length(h.text))
                   WHEN h.bytes > 8192
                   THEN format('the headers have %s bytes of names and values; allowed are at most 8192', h.bytes)
               END AS wrong) AS c;
        END IF;
        IF wrong IS NOT NULL THEN
            RAISE EXCEPTION '%', wrong USING ERRCODE = 'invalid_parameter_value';
        END IF;
        due := greatest(push_with_headers.at, statement_timestamp()) + delay_seconds * interval '1 second';
        expires := CASE WHEN ttl_seconds > 0 THEN due + ttl_seconds * interval '1 second' END;
        IF push_with_headers.notify THEN
            PERFORM pg_notify('lockapi', lockapi.advisory_key(push_with_headers.namespace, 'queue ' || push_with_headers.queue)::text);
        END IF;
        LOOP
            number := NULL;
            IF push_with_headers.idempotency_key IS NOT NULL THEN
                INSERT INTO lockapi.push_key AS k (namespace, queue, key, job)
                VALUES (push_with_headers.namespace, push_with_headers.queue, push_with_headers.idempotency_key, nextval('lockapi.job_seq'))
                ON CONFLICT DO NOTHING
                RETURNING k.job INTO number;
                IF NOT FOUND THEN
                    SELECT k.job INTO number FROM lockapi.push_key AS k
                     WHERE k.namespace = push_with_headers.namespace AND k.queue = push_with_headers.queue
                       AND k.key = push_with_headers.idempotency_key;
                    IF FOUND THEN
                        PERFORM pg_logical_emit_message(true, 'lockapi', '');
                        RETURN number;
                    END IF;
                    CONTINUE;
                END IF;
            ELSIF push_with_headers.unique_key IS NOT NULL THEN
                SELECT j.id, j.token IS NULL AND j.attempt = 0 AND coalesce(j.expires_at <= clock_timestamp(), false)
                  INTO number, found_expired
                  FROM lockapi.job AS j
                 WHERE j.namespace COLLATE "POSIX" = push_with_headers.namespace AND j.queue COLLATE "POSIX" = push_with_headers.queue
                   AND j.unique_key = push_with_headers.unique_key;
                IF FOUND AND NOT found_expired THEN
                    PERFORM pg_logical_emit_message(true, 'lockapi', '');
                    RETURN number;
                ELSIF FOUND THEN
                    UPDATE lockapi.job AS j
                       SET name = push_with_headers.name, payload = push_with_headers.payload, priority = level,
                           max_attempts = push_with_headers.max_attempts,
                           error = NULL, errors = NULL, expires_at = expires, group_key = push_with_headers.group_key, headers = kept,
                           run_at = CASE WHEN push_with_headers.group_key IS NULL THEN due ELSE never END,
                           due_at = CASE WHEN push_with_headers.group_key IS NOT NULL THEN due END
                     WHERE j.id = number AND j.token IS NULL AND j.attempt = 0
                       AND coalesce(j.expires_at <= clock_timestamp(), false);
                    IF FOUND THEN
                        RETURN number;
                    END IF;
                    CONTINUE;
                END IF;
            END IF;
            INSERT INTO lockapi.job AS j (id, run_at, due_at, group_key, created_at, max_attempts, priority, namespace, queue,
                                          unique_key, name, payload, expires_at, headers)
            VALUES (coalesce(number, nextval('lockapi.job_seq')),
                    CASE WHEN push_with_headers.group_key IS NULL THEN due ELSE never END,
                    CASE WHEN push_with_headers.group_key IS NOT NULL THEN due END, push_with_headers.group_key, statement_timestamp(),
                    push_with_headers.max_attempts, level, push_with_headers.namespace, push_with_headers.queue,
                    push_with_headers.unique_key, push_with_headers.name, push_with_headers.payload, expires, kept)
            ON CONFLICT (namespace COLLATE "POSIX", queue COLLATE "POSIX", unique_key) WHERE unique_key IS NOT NULL
            DO NOTHING
            RETURNING j.id INTO number;
            IF FOUND THEN
                RETURN number;
            END IF;
        END LOOP;
    END
    $$;

COMMENT ON FUNCTION lockapi.push_with_headers(text, text, json, jsonb, text, text, interval, timestamptz, int4, interval, text, text, text, bool)
    IS 'Pushes a job with headers to a queue, in the transaction of the caller; answers its number.';

-- lockapi.push() puts a job in the place of one that has expired: the headers of that one go as well.
CREATE OR REPLACE FUNCTION lockapi.push(
    queue text, name text, payload json DEFAULT 'null',
    namespace text DEFAULT 'default', priority text DEFAULT 'normal', delay interval DEFAULT '0',
    at timestamptz DEFAULT NULL, max_attempts int4 DEFAULT 20, ttl interval DEFAULT '0',
    group_key text DEFAULT NULL, unique_key text DEFAULT NULL, idempotency_key text DEFAULT NULL,
    notify bool DEFAULT true) RETURNS int8
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
    #variable_conflict use_column
    DECLARE
        never constant timestamptz := '20000-01-01 00:00:00+00';
        level constant int4 := array_position(ARRAY['urgent', 'high', 'normal', 'low'], push.priority) - 1;
        most_seconds constant float8 := 3660 * 86400;
        -- Of months and days as well, whose length would depend on the date and the time zone.
        delay_seconds constant float8 := extract(epoch FROM push.delay);
        ttl_seconds constant float8 := extract(epoch FROM push.ttl);
        wrong text;
        due timestamptz;
        expires timestamptz;
        number int8;
        found_expired bool;
    BEGIN
        wrong := (SELECT format('the %s has %s bytes; allowed are 1 to 255 bytes', c.what, coalesce(octet_length(c.value), 0))
                    FROM (VALUES ('name of the queue', push.queue, true), ('name', push.name, true),
                                 ('group', push.group_key, false), ('unique key', push.unique_key, false),
                                 ('idempotency key', push.idempotency_key, false)) AS c (what, value, needed)
                   WHERE coalesce(octet_length(c.value), CASE WHEN c.needed THEN 0 ELSE 1 END) NOT BETWEEN 1 AND 255
                   LIMIT 1);
        wrong := CASE
            WHEN wrong IS NOT NULL THEN wrong
            WHEN coalesce(octet_length(push.namespace), 256) > 255
            THEN 'the namespace is NULL or has more than 255 bytes; allowed are at most 255 bytes'
            WHEN push.payload IS NULL OR octet_length(push.payload::text) > 16777216
            THEN 'the payload is NULL or has more than 16 MiB; allowed is one JSON value of at most 16777216 bytes'
            WHEN level IS NULL
            THEN format('a priority of %L; allowed are urgent, high, normal and low', push.priority)
            WHEN delay_seconds NOT BETWEEN 0 AND most_seconds IS NOT FALSE
            THEN format('a delay of %s; allowed are 0 to 3660 days', coalesce(push.delay::text, 'NULL'))
            WHEN ttl_seconds NOT BETWEEN 0 AND most_seconds IS NOT FALSE
            THEN format('a ttl of %s; allowed are 0, which means for ever, to 3660 days', coalesce(push.ttl::text, 'NULL'))
            WHEN push.at >= timestamptz '10000-01-01 00:00:00+00'
            THEN 'a time after the year 9999; allowed are earlier times'
            WHEN push.max_attempts NOT BETWEEN 1 AND 1000000 IS NOT FALSE
            THEN format('max_attempts of %s; allowed are 1 to 1000000', coalesce(push.max_attempts::text, 'NULL'))
            WHEN starts_with(push.unique_key, 'task/')
            THEN format('the unique key %L; allowed are those that do not begin with task/, as those of runs of tasks do', push.unique_key)
            WHEN push.unique_key IS NOT NULL AND push.idempotency_key IS NOT NULL
            THEN 'the job has a unique key and an idempotency key; allowed is one of them'
        END;
        IF wrong IS NOT NULL THEN
            RAISE EXCEPTION '%', wrong USING ERRCODE = 'invalid_parameter_value';
        END IF;
        due := greatest(push.at, statement_timestamp()) + delay_seconds * interval '1 second';
        expires := CASE WHEN ttl_seconds > 0 THEN due + ttl_seconds * interval '1 second' END;
        IF push.notify THEN
            PERFORM pg_notify('lockapi', lockapi.advisory_key(push.namespace, 'queue ' || push.queue)::text);
        END IF;
        LOOP
            number := NULL;
            IF push.idempotency_key IS NOT NULL THEN
                INSERT INTO lockapi.push_key AS k (namespace, queue, key, job)
                VALUES (push.namespace, push.queue, push.idempotency_key, nextval('lockapi.job_seq'))
                ON CONFLICT DO NOTHING
                RETURNING k.job INTO number;
                IF NOT FOUND THEN
                    SELECT k.job INTO number FROM lockapi.push_key AS k
                     WHERE k.namespace = push.namespace AND k.queue = push.queue AND k.key = push.idempotency_key;
                    IF FOUND THEN
                        PERFORM pg_logical_emit_message(true, 'lockapi', '');
                        RETURN number;
                    END IF;
                    CONTINUE;
                END IF;
            ELSIF push.unique_key IS NOT NULL THEN
                SELECT j.id, j.token IS NULL AND j.attempt = 0 AND coalesce(j.expires_at <= clock_timestamp(), false)
                  INTO number, found_expired
                  FROM lockapi.job AS j
                 WHERE j.namespace COLLATE "POSIX" = push.namespace AND j.queue COLLATE "POSIX" = push.queue
                   AND j.unique_key = push.unique_key;
                IF FOUND AND NOT found_expired THEN
                    PERFORM pg_logical_emit_message(true, 'lockapi', '');
                    RETURN number;
                ELSIF FOUND THEN
                    UPDATE lockapi.job AS j
                       SET name = push.name, payload = push.payload, priority = level, max_attempts = push.max_attempts,
                           error = NULL, errors = NULL, headers = NULL, expires_at = expires, group_key = push.group_key,
                           run_at = CASE WHEN push.group_key IS NULL THEN due ELSE never END,
                           due_at = CASE WHEN push.group_key IS NOT NULL THEN due END
                     WHERE j.id = number AND j.token IS NULL AND j.attempt = 0
                       AND coalesce(j.expires_at <= clock_timestamp(), false);
                    IF FOUND THEN
                        RETURN number;
                    END IF;
                    CONTINUE;
                END IF;
            END IF;
            INSERT INTO lockapi.job AS j (id, run_at, due_at, group_key, created_at, max_attempts, priority, namespace, queue,
                                          unique_key, name, payload, expires_at)
            VALUES (coalesce(number, nextval('lockapi.job_seq')),
                    CASE WHEN push.group_key IS NULL THEN due ELSE never END,
                    CASE WHEN push.group_key IS NOT NULL THEN due END, push.group_key, statement_timestamp(),
                    push.max_attempts, level, push.namespace, push.queue, push.unique_key, push.name, push.payload, expires)
            ON CONFLICT (namespace COLLATE "POSIX", queue COLLATE "POSIX", unique_key) WHERE unique_key IS NOT NULL
            DO NOTHING
            RETURNING j.id INTO number;
            IF FOUND THEN
                RETURN number;
            END IF;
        END LOOP;
    END
    $$;
