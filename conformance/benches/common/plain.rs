//! What a program would write itself: the tables and statements that are measured beside the library.

/// A lock of the server, and its end.
pub(crate) const LOCK: [&str; 2] = [
    "SELECT pg_try_advisory_lock($1)",
    "SELECT pg_advisory_unlock($1)",
];
pub(crate) const LOCK_ALL: &str =
    "SELECT pg_try_advisory_lock(hashtext(k)) FROM unnest($1::text[]) AS k";
pub(crate) const UNLOCK_ALL: &str =
    "SELECT pg_advisory_unlock(hashtext(k)) FROM unnest($1::text[]) AS k";

/// Leases with tokens.
pub(crate) const LEASES: &str = "
    CREATE TABLE bench_lease (key text PRIMARY KEY, token int8 NOT NULL, owner text NOT NULL,
                              expires timestamptz NOT NULL) WITH (fillfactor = 50);
    CREATE SEQUENCE bench_token;";
pub(crate) const ACQUIRE: &str = "
    INSERT INTO bench_lease AS l VALUES ($1, nextval('bench_token'), $2, now() + interval '30 s')
    ON CONFLICT (key) DO UPDATE SET token = excluded.token, owner = excluded.owner, expires = excluded.expires
     WHERE l.expires <= now() RETURNING token";
pub(crate) const RELEASE: &str =
    "UPDATE bench_lease SET expires = now() WHERE key = $1 AND token = $2";
/// A lease whose token is 1, unless it is there, and its renewal.
pub(crate) const HOLD: &str =
    "INSERT INTO bench_lease VALUES ($1, 1, 'me', now()) ON CONFLICT DO NOTHING";
pub(crate) const RENEW: &str =
    "UPDATE bench_lease SET expires = now() + interval '30 s' WHERE key = $1 AND token = 1";
pub(crate) const ACQUIRE_ALL: &str = "
    INSERT INTO bench_lease AS l
    SELECT k, nextval('bench_token'), 'me', now() + interval '1 min' FROM unnest($1::text[]) AS k
    ON CONFLICT (key) DO UPDATE SET token = excluded.token, owner = excluded.owner, expires = excluded.expires
     WHERE l.expires <= now() RETURNING token";
pub(crate) const RELEASE_ALL: &str =
    "UPDATE bench_lease SET expires = now() WHERE key = ANY ($1::text[]) RETURNING key";
pub(crate) const RENEW_ALL: &str = "
    UPDATE bench_lease SET expires = now() + interval '1 min' WHERE key = ANY ($1::text[]) RETURNING key";

/// A fixed window, counted under an advisory lock.
pub(crate) const WINDOWS: &str = "
    CREATE TABLE bench_window (key text PRIMARY KEY, started timestamptz NOT NULL, used int NOT NULL)
        WITH (fillfactor = 50);
    CREATE FUNCTION bench_check(the_key text, the_limit int, length interval) RETURNS bool
    LANGUAGE plpgsql AS $$
    DECLARE w bench_window;
    BEGIN
        PERFORM pg_advisory_xact_lock(hashtext(the_key));
        SELECT * INTO w FROM bench_window WHERE key = the_key;
        IF NOT FOUND OR w.started + length <= clock_timestamp() THEN
            INSERT INTO bench_window VALUES (the_key, clock_timestamp(), 1)
            ON CONFLICT (key) DO UPDATE SET started = excluded.started, used = 1;
            RETURN true;
        END IF;
        IF w.used >= the_limit THEN
            RETURN false;
        END IF;
        UPDATE bench_window SET used = used + 1 WHERE key = the_key;
        RETURN true;
    END $$;";
pub(crate) const CHECK_SECOND: &str = "SELECT bench_check($1, $2, interval '1 s')";
pub(crate) const CHECK_HOUR: &str = "SELECT bench_check($1, $2, '1 hour')";

/// The state of a limit as one number.
pub(crate) const LIMITS: &str = "
    CREATE TABLE bench_limit (key text PRIMARY KEY, tat int8 NOT NULL) WITH (fillfactor = 50);
    INSERT INTO bench_limit SELECT 'k' || n, 0 FROM generate_series(0, 999) AS n;";
pub(crate) const TAKE_ALL: &str = "
    UPDATE bench_limit AS l SET tat = greatest(l.tat, 0) + 10
     WHERE l.key = ANY ($1::text[]) AND l.tat <= 1000000000000 RETURNING l.tat";

/// Jobs of a queue.
pub(crate) const JOBS: &str = "
    CREATE TABLE bench_job (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue text NOT NULL,
                            payload json NOT NULL, run_at timestamptz NOT NULL DEFAULT now());";
pub(crate) const PUSH: &str =
    "INSERT INTO bench_job (queue, payload) VALUES ($1, $2::text::json) RETURNING id";
pub(crate) const PUSH_ALL: &str = "
    INSERT INTO bench_job (queue, payload, run_at) SELECT k, '{\"customer\": 4711}', now()
      FROM unnest($1::text[]) AS k RETURNING id";
