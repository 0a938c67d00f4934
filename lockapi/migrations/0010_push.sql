-- Pushing in SQL: from psql, from triggers, and from programs in other languages.

SET LOCAL search_path = pg_catalog, pg_temp;

-- Pushes a job in the transaction of the caller: it is there when that commits, and only then. Answers its number, or
-- that of the job with the same key.
--
-- Promises: the same rows, limits and notification as Queue::push_in. With a unique key the job that waits or runs
-- stays as it is; one that has expired before it was delivered becomes the new one.
-- Index: job_unique, whose collation no other has; push_key_pkey; job_pkey.
-- Race: two pushes of a new key meet at ON CONFLICT DO NOTHING, where the second waits until the first has ended, and
-- looks again. Under a stricter isolation than READ COMMITTED it fails instead, as everything does there.
CREATE FUNCTION lockapi.push(
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
            WHEN push.delay NOT BETWEEN interval '0' AND interval '3660 days' IS NOT FALSE
            THEN format('a delay of %s; allowed are 0 to 3660 days', coalesce(push.delay::text, 'NULL'))
            WHEN push.ttl NOT BETWEEN interval '0' AND interval '3660 days' IS NOT FALSE
            THEN format('a ttl of %s; allowed are 0, which means for ever, to 3660 days', coalesce(push.ttl::text, 'NULL'))
            WHEN push.at >= timestamptz '10000-01-01 00:00:00+00'
            THEN 'a time after the year 9999; allowed are earlier times'
            WHEN push.max_attempts NOT BETWEEN 1 AND 1000000 IS NOT FALSE
            THEN format('max_attempts of %s; allowed are 1 to 1000000', coalesce(push.max_attempts::text, 'NULL'))
            WHEN push.unique_key IS NOT NULL AND push.idempotency_key IS NOT NULL
            THEN 'the job has a unique key and an idempotency key; allowed is one of them'
        END;
        IF wrong IS NOT NULL THEN
            RAISE EXCEPTION '%', wrong USING ERRCODE = 'invalid_parameter_value';
        END IF;
        due := greatest(push.at, statement_timestamp()) + push.delay;
        expires := CASE WHEN push.ttl > interval '0' THEN due + push.ttl END;
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
                    RETURN number;
                ELSIF FOUND THEN
                    UPDATE lockapi.job AS j
                       SET name = push.name, payload = push.payload, priority = level, max_attempts = push.max_attempts,
                           error = NULL, errors = NULL, expires_at = expires, group_key = push.group_key,
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

COMMENT ON FUNCTION lockapi.push(text, text, json, text, text, interval, timestamptz, int4, interval, text, text, text, bool)
    IS 'Pushes a job to a queue, in the transaction of the caller; answers its number.';
