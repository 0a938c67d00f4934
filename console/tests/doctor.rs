//! `lockapi doctor` finds each of the faults that are made here, and nothing in a database that is as it should be.

mod common;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use common::{Database, program, run, soon};
use lockapi_conformance::cluster::Cluster;
use lockapi_conformance::proxy::Proxy;
use serde_json::Value;

/// How a fault is made: statements in a database of its own, and what is found then, with the exit status.
struct Made {
    fault: &'static str,
    subject: &'static str,
    by: &'static str,
    status: i32,
}

const fn made(fault: &'static str, subject: &'static str, status: i32, by: &'static str) -> Made {
    Made {
        fault,
        subject,
        by,
        status,
    }
}

const MADE: &[Made] = &[
    made("no_schema", "lockapi", 4, "DROP SCHEMA lockapi CASCADE"),
    made("old_schema", "admin", 4, "DELETE FROM lockapi.migration WHERE name = 'admin'"),
    made("other_schema", "lease", 4, "UPDATE lockapi.migration SET checksum = 'x' WHERE name = 'lease'"),
    made("later_schema", "version 99", 0, "INSERT INTO lockapi.migration (version, name, checksum) VALUES (99, 'later', 'x')"),
    made("missing_index", "job_due", 4, "DROP INDEX lockapi.job_due"),
    made("invalid_index", "job_archive_failed", 4, "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'lockapi.job_archive_failed'::regclass"),
    made("missing_object", "table queue", 4, "DROP TABLE lockapi.queue"),
    made("missing_object", "column job.errors", 4, "ALTER TABLE lockapi.job DROP COLUMN errors"),
    made("missing_object", "view lease_view", 4, "DROP VIEW lockapi.lease_view"),
    made("missing_object", "function lock_table", 4, "DROP FUNCTION lockapi.lock_table(text, text, text, bool)"),
    made(
        "changed_object",
        "function advisory_key",
        4,
        "CREATE OR REPLACE FUNCTION lockapi.advisory_key(namespace text, name text) RETURNS int8
             LANGUAGE sql IMMUTABLE AS 'SELECT 1::int8'",
    ),
    made("changed_object", "column lease.fence", 4, "ALTER TABLE lockapi.lease ALTER COLUMN fence DROP NOT NULL"),
    made("unlogged", "id_block", 4, "ALTER TABLE lockapi.id_block SET UNLOGGED"),
    made("logged", "since_crash", 4, "ALTER TABLE lockapi.since_crash SET LOGGED"),
    made(
        "trigger",
        "job",
        3,
        "CREATE FUNCTION public.t() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
         CREATE TRIGGER t BEFORE UPDATE ON lockapi.job FOR EACH ROW EXECUTE FUNCTION public.t()",
    ),
    made("no_timeline", "lockapi.epoch", 3, "UPDATE lockapi.epoch SET timeline = -1"),
    made("rule", "lease", 4, "CREATE RULE r AS ON DELETE TO lockapi.lease DO INSTEAD NOTHING"),
    made("row_security", "lease", 4, "ALTER TABLE lockapi.lease ENABLE ROW LEVEL SECURITY"),
    made("table_autovacuum", "job", 3, "ALTER TABLE lockapi.job SET (autovacuum_enabled = off)"),
    made(
        "dead_rows",
        "push_key",
        3,
        "ALTER TABLE lockapi.push_key SET (autovacuum_enabled = off);
         INSERT INTO lockapi.push_key (namespace, queue, key, job)
         SELECT 'n', 'q', i::text, i FROM generate_series(1, 60000) AS i;
         DELETE FROM lockapi.push_key",
    ),
    made("late_commit", "synchronous_commit", 3, "ALTER DATABASE \":name\" SET synchronous_commit = off"),
    made("own_read_only", "DATABASE", 3, "ALTER DATABASE \":name\" SET default_transaction_read_only = off"),
    made(
        "own_read_only",
        " IN DATABASE",
        3,
        "ALTER ROLE CURRENT_USER IN DATABASE \":name\" SET default_transaction_read_only = off",
    ),
    made(
        "unclaimed",
        "default/mails",
        3,
        "INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, name, payload)
         VALUES (now() - interval '1 hour', 1, 2, 'default', 'mails', 'welcome', 'null')",
    ),
    made(
        "paused",
        "default/mails",
        3,
        "INSERT INTO lockapi.queue (namespace, name, paused) VALUES ('default', 'mails', true);
         INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, name, payload)
         VALUES (now() - interval '1 hour', 1, 0, 'default', 'mails', 'welcome', 'null')",
    ),
    made(
        "unclaimed",
        "default/imports",
        3,
        "SELECT lockapi.push('imports', 'import', group_key => 'tenant-7');
         UPDATE lockapi.job SET due_at = now() - interval '1 hour'",
    ),
    made(
        "limited",
        "default/mails",
        3,
        "INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, name, payload)
         SELECT now() - interval '1 hour', 1, 2, 'default', 'mails', 'welcome', 'null' FROM generate_series(1, 3);
         UPDATE lockapi.job SET token = 7, lease_until = now() + interval '1 hour' WHERE id = (SELECT min(id) FROM lockapi.job);
         INSERT INTO lockapi.queue_limit (namespace, queue, most, ids, tokens)
         SELECT 'default', 'mails', 1, ARRAY[min(id)], ARRAY[7] FROM lockapi.job",
    ),
    made(
        "limited",
        "default/mails",
        3,
        "INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, name, payload)
         VALUES (now() - interval '1 hour', 1, 2, 'default', 'mails', 'welcome', 'null');
         INSERT INTO lockapi.queue_limit (namespace, queue, permits, period, burst, step, tat, at)
         SELECT 'default', 'mails', 1, 3600000000000, 1, 3600000000000, lockapi.clock() + 1800000000000, lockapi.clock() - 1800000000000",
    ),
    // The limit has places and permits left: nobody claims.
    made(
        "unclaimed",
        "default/mails",
        3,
        "INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, name, payload)
         SELECT now() - interval '1 hour', 1, 2, 'default', 'mails', 'welcome', 'null' FROM generate_series(1, 3);
         UPDATE lockapi.job SET token = 7, lease_until = now() - interval '1 hour' WHERE id = (SELECT min(id) FROM lockapi.job);
         INSERT INTO lockapi.queue_limit (namespace, queue, most, ids, tokens, permits, period, burst, step, tat, at)
         SELECT 'default', 'mails', 1, ARRAY[min(id), max(id)], ARRAY[7, 7], 60, 60000000000, 1, 1000000000,
                lockapi.clock() - 120000000000, lockapi.clock() - 120000000000 FROM lockapi.job",
    ),
    made(
        "paused_group",
        "default/imports/tenant-7",
        3,
        "SELECT lockapi.push('imports', 'import', group_key => 'tenant-7');
         UPDATE lockapi.job SET due_at = now() - interval '1 hour';
         INSERT INTO lockapi.group_limit VALUES (0, 'default', 'imports', 'tenant-7')",
    ),
    // A key, which holds up the group of its job as well.
    made(
        "paused_group",
        "default/imports/bank",
        3,
        r#"SELECT lockapi.push_with_headers('imports', 'import', 'null', '{"limit-by": "bank"}', group_key => 'tenant-7');
         SELECT lockapi.push('imports', 'import', group_key => 'tenant-7');
         UPDATE lockapi.job SET due_at = now() - interval '1 hour';
         INSERT INTO lockapi.group_limit VALUES (0, 'default', 'imports', 'bank')"#,
    ),
    made(
        "paused_name",
        "default/mails/welcome",
        3,
        "INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, name, payload)
         VALUES (now() - interval '1 hour', 1, 2, 'default', 'mails', 'welcome', 'null');
         INSERT INTO lockapi.paused_name (namespace, queue, name) VALUES ('default', 'mails', 'welcome')",
    ),
    made(
        "dead_letters",
        "default/mails",
        0,
        "INSERT INTO lockapi.job_archive (id, status, run_at, created_at, attempt, max_attempts, priority, namespace, queue, name, payload)
         VALUES (1, 'failed', now(), now(), 1, 1, 2, 'default', 'mails', 'welcome', 'null')",
    ),
    made(
        "overdue_tasks",
        "default/night",
        4,
        "INSERT INTO lockapi.task (next_at, every, timeout, misfire, misfire_most, overlap, max_attempts, priority, namespace,
                                   scheduler, name, job, payload)
         VALUES (now() - interval '1 hour', 60000000, 0, 1, 0, 1, 1, 2, 'default', 'night', 'vacuum', 'vacuum', 'null')",
    ),
    made(
        "worker_numbers",
        "default/orders",
        3,
        "INSERT INTO lockapi.id_space (namespace, name, worker_bits, sequence_bits, epoch) VALUES ('default', 'orders', 2, 12, 0);
         INSERT INTO lockapi.id_worker (namespace, name, worker, token, floor, owner, claimed_at, renewed_at, expires_at)
         SELECT 'default', 'orders', i, 1, 0, 'somebody', now(), now(), now() + interval '1 hour' FROM generate_series(0, 3) AS i",
    ),
    made(
        "unswept",
        "lease",
        3,
        "INSERT INTO lockapi.lease (namespace, key, slot, fence, acquisition, owner, data, acquired_at, renewed_at, expires_at)
         VALUES ('default', 'old', 0, 1, 1, '', '', now() - interval '9 days', now() - interval '9 days', now() - interval '8 days')",
    ),
    made("other_index", "by_worker", 3, "CREATE INDEX by_worker ON lockapi.job (worker)"),
    made(
        "blocked_limit",
        "default/a",
        0,
        "INSERT INTO lockapi.rate_limit (namespace, key, blocked_until)
         SELECT 'default', key, lockapi.clock() + 48 * 3600 * 1000000000::int8 FROM unnest(ARRAY['a', 'b']) AS key;
         INSERT INTO lockapi.rate_limit (namespace, key, blocked_until)
         VALUES ('short', 'a', lockapi.clock() + 3600 * 1000000000::int8)",
    ),
    made(
        "full_limit",
        "default/uploads",
        3,
        "INSERT INTO lockapi.rate_limit (namespace, key, reserved) VALUES ('default', 'uploads', 8001)",
    ),
];

fn doctor(database: &Database) -> (i32, Vec<Value>) {
    let ran = database.lockapi(["doctor", "--json"]);
    let found = ran.json().as_array().expect("an array").clone();
    (ran.status, found)
}

fn has(found: &[Value], fault: &str, subject: &str) -> bool {
    found.iter().any(|it| {
        let is_about = it["subject"]
            .as_str()
            .is_some_and(|about| about.contains(subject));
        it["fault"] == fault && is_about
    })
}

#[test]
fn each_fault_in_a_database_is_found() {
    let fresh = Database::new();
    let (status, found) = doctor(&fresh);
    assert_eq!(
        (status, found.as_slice()),
        (0, [].as_slice()),
        "nothing is wrong"
    );
    let missed = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    // A copy needs the original for itself, so they are made one after the other.
    let copying = Mutex::new(());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(made) = MADE.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let database = {
                        let _alone = copying.lock().expect("the original");
                        Database::like(&fresh)
                    };
                    if let Some(wrong) = made.is_missed(&database) {
                        missed.lock().expect("what was missed").push(wrong);
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().expect("what was missed");
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// Parked jobs that have been due for long, and what holds them up in some of the queues. What is set for another group, queue or
/// namespace holds nothing up.
const PARKED: &str = "
    SELECT lockapi.push(queue, 'import', group_key => 'a')
      FROM unnest(ARRAY['rated', 'admitted', 'ordered', 'stopped', 'beside']) AS queue;
    UPDATE lockapi.job SET due_at = now() - interval '1 hour';
    SELECT lockapi.push(queue, 'import', group_key => 'a') FROM unnest(ARRAY['ordered', 'beside']) AS queue;
    UPDATE lockapi.job AS j SET due_at = j.due_at + interval '2 hours'
     WHERE j.queue IN ('ordered', 'beside') AND j.id = (SELECT min(o.id) FROM lockapi.job AS o WHERE o.queue = j.queue);
    UPDATE lockapi.job SET due_at = now() - interval '1 hour' WHERE due_at BETWEEN now() - interval '1 minute' AND now();
    INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, name, payload, group_key, token, lease_until)
    SELECT now() - interval '1 hour', 1, 2, o.namespace, o.queue, 'import', 'null', 'b', 7, now() + interval '1 hour'
      FROM (VALUES ('default', 'admitted'), ('other', 'beside')) AS o (namespace, queue);
    INSERT INTO lockapi.group_rate (tat, at, namespace, queue, group_key)
    SELECT lockapi.clock() + 3600000000000, lockapi.clock(), o.namespace, o.queue, o.group_key
      FROM (VALUES ('default', 'rated', 'a'), ('default', 'beside', 'b'), ('other', 'beside', 'a'))
           AS o (namespace, queue, group_key);
    INSERT INTO lockapi.queue_groups (ordered, namespace, queue)
    VALUES (true, 'default', 'ordered'), (false, 'default', 'beside'), (true, 'other', 'beside');
    INSERT INTO lockapi.group_limit (most, namespace, queue, group_key)
    VALUES (0, 'default', 'stopped', 'a'), (0, 'default', 'beside', 'b'), (0, 'other', 'beside', 'a')";

#[test]
fn parked_jobs_are_told_where_nothing_holds_them_up() {
    let database = Database::new();
    database.sql(PARKED);
    let (_, found) = doctor(&database);
    let mut told: Vec<_> = found
        .iter()
        .map(|it| [&it["fault"], &it["subject"]].map(|it| it.as_str().unwrap_or_default()))
        .collect();
    told.sort_unstable();
    let expected = [
        ["paused_group", "default/stopped/a"],
        ["unclaimed", "default/beside"],
    ];
    assert_eq!(told, expected, "{found:#?}");
}

impl Made {
    /// Makes it, and tells what was found instead.
    fn is_missed(&self, database: &Database) -> Option<String> {
        database.sql(&self.by.replace(":name", &database.name));
        let (status, found) = soon(self.fault, || {
            let (status, found) = doctor(database);
            // What was done is counted after a moment only.
            let counted = self.fault != "dead_rows" || has(&found, self.fault, self.subject);
            counted.then_some((status, found))
        });
        for finding in &found {
            for told in ["severity", "detail", "why", "remedy"] {
                let told = finding[told].as_str();
                assert!(told.is_some_and(|text| !text.is_empty()), "{finding}");
            }
        }
        let is_found = has(&found, self.fault, self.subject) && status == self.status;
        (!is_found).then(|| format!("{} of {}: {status}, {found:#?}", self.fault, self.subject))
    }
}

/// What is offered as a remedy for the schema mends it.
#[test]
fn remedies_mend_the_schema() {
    let database = Database::new();
    database.sql(
        "DROP INDEX lockapi.job_due; DROP INDEX lockapi.job_unique;
         DROP VIEW lockapi.lease_view; DROP FUNCTION lockapi.lock_table(text, text, text, bool);
         CREATE OR REPLACE FUNCTION lockapi.advisory_key(namespace text, name text) RETURNS int8
             LANGUAGE sql IMMUTABLE AS 'SELECT 1::int8'",
    );
    let (status, found) = doctor(&database);
    assert_eq!((status, found.len()), (4, 5), "{found:#?}");
    for finding in &found {
        database.sql(finding["remedy"].as_str().expect("statements"));
    }
    let (status, found) = doctor(&database);
    assert_eq!((status, found.as_slice()), (0, [].as_slice()));
}

/// Sessions, transactions and locks that last: of a server of its own, because others would see them.
#[test]
fn faults_of_a_server_are_found() {
    let cluster = Cluster::private(&[
        ("max_prepared_transactions", "5"),
        ("max_connections", "20"),
        ("max_locks_per_transaction", "10"),
        ("autovacuum", "off"),
    ])
    .expect("a server");
    let lockapi = |arguments: &[&str]| {
        let mut command = program();
        command.env("DATABASE_URL", cluster.url()).args(arguments);
        run(command)
    };
    lockapi(&["migrate", "up"]).succeeds();
    let find = |fault: &str, subject: &str| {
        let ran = lockapi(&["doctor", "--json", "--older-than", "1s"]);
        let found = ran.json();
        has(found.as_array().expect("an array"), fault, subject).then_some(ran.status)
    };
    assert_eq!(find("no_autovacuum", "autovacuum"), Some(4));
    cluster
        .psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf()")
        .expect("set");
    soon("fsync", || find("not_durable", "fsync"));
    cluster
        .psql("SELECT pg_create_physical_replication_slot('nobody', true)")
        .expect("a slot");
    assert!(find("replication_slot", "nobody").is_some());
    cluster
        .psql("BEGIN; SELECT 1; PREPARE TRANSACTION 'forgotten'")
        .expect("prepared");
    soon("a prepared transaction", || {
        find("prepared_transaction", "forgotten")
    });
    // A person who went to lunch, with a lock that somebody else wants.
    let psql = |sql: &str| {
        let mut command = std::process::Command::new("psql");
        command.args(["-X", "-q", "-d", cluster.url(), "-c", sql]);
        command
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("psql")
    };
    let mut held = psql("SELECT pg_advisory_lock(42), pg_sleep(300)");
    soon("an old transaction", || find("old_snapshot", "session"));
    let mut waiting = psql("SELECT pg_advisory_lock(42)");
    soon("a wait", || find("lock_wait", "#42"));
    let shown = lockapi(&["lock", "waits", "--everywhere"]).succeeds();
    shown.shows("#42").shows("active");
    lockapi(&["lock", "release", "#42", "--reason", "lunch"])
        .succeeds()
        .shows("ended session");
    assert!(!held.wait().expect("it ends").success());
    waiting.wait().expect("it ends");
    // So many locks that others will find no room.
    let mut many = psql(
        "SELECT pg_advisory_lock(i) FROM generate_series(1000, 1000 + 190) AS i; SELECT pg_sleep(300)",
    );
    soon("a full lock table", || {
        find("lock_table", "max_locks_per_transaction")
    });
    many.kill().expect("killed");
    many.wait().expect("it ends");
    let mut sessions: Vec<_> = (0..16).map(|_| psql("SELECT pg_sleep(300)")).collect();
    soon("many connections", || {
        find("connections", "max_connections")
    });
    for session in &mut sessions {
        session.kill().expect("killed");
        session.wait().expect("it ends");
    }
}

/// A table that was large once: its rows were deleted and vacuumed, and a few between the pages stay.
#[test]
fn what_is_many_times_too_large_is_found() {
    let database = Database::new();
    // Whether it was vacuumed is not up to chance.
    database.sql("ALTER TABLE lockapi.push_key SET (autovacuum_enabled = off)");
    let bloated = |database: &Database| {
        let (_, found) = doctor(database);
        let mut names: Vec<String> = Vec::new();
        for finding in found {
            let fault = finding["fault"].as_str().expect("a name").to_owned();
            if fault.ends_with("_bloat") {
                let subject = finding["subject"].as_str().expect("a subject");
                names.push(format!("{fault} {subject}"));
            }
        }
        names
    };
    database.sql(
        "INSERT INTO lockapi.push_key (namespace, queue, key, job)
         SELECT 'n', 'q', lpad(i::text, 480, '0'), i FROM generate_series(1, 160000) AS i",
    );
    database.sql("VACUUM ANALYZE lockapi.push_key");
    assert!(bloated(&database).is_empty(), "it is large and full");
    database.sql("DELETE FROM lockapi.push_key WHERE job % 1000 <> 0");
    database.sql("VACUUM ANALYZE lockapi.push_key");
    let names = ["index_bloat push_key_pkey", "table_bloat push_key"];
    assert_eq!(bloated(&database), names);
    database.sql("REINDEX INDEX CONCURRENTLY lockapi.push_key_pkey");
    assert_eq!(bloated(&database), names[1..]);
    database.sql("VACUUM FULL lockapi.push_key");
    assert!(bloated(&database).is_empty(), "it was made anew");
}

/// An index that nobody reads says so when its table was written often.
#[test]
fn an_index_that_nobody_reads_is_told() {
    let database = Database::new();
    let detail = || {
        let (_, found) = doctor(&database);
        let other = |it: &&Value| it["fault"] == "other_index";
        let found = found.iter().find(other).expect("it is found");
        found["detail"].as_str().expect("a detail").to_owned()
    };
    database.sql("CREATE INDEX mine ON lockapi.push_key (job)");
    assert!(!detail().contains("nobody"), "the table was not used");
    database.sql(
        "INSERT INTO lockapi.push_key (namespace, queue, key, job)
         SELECT 'n', 'q', i::text, i FROM generate_series(1, 2000) AS i",
    );
    // What was done is counted after a moment only.
    soon("that it is not read", || {
        detail()
            .contains("nobody has read it in 2000 writes")
            .then_some(())
    });
    database.sql("SET enable_seqscan = off; SELECT FROM lockapi.push_key WHERE job = 7");
    soon("that it is read", || {
        (!detail().contains("nobody")).then_some(())
    });
}

/// A leadership and a lease that go from one to the other, and others that do not.
#[test]
fn leases_that_are_acquired_again_and_again_are_found() {
    let database = Database::new();
    database.sql(
        "INSERT INTO lockapi.lease (namespace, key, slot, fence, acquisition, owner, data, acquired_at, renewed_at, expires_at)
         SELECT 'default', key, slot, 1, 1, 'node-1', '', now(), now(), now() + interval '1 hour'
           FROM (VALUES ('scheduler', -1), ('nightly', 0), ('permits', 3), ('alone', 0), ('steady', 0), ('steady', -1)) AS l (key, slot)",
    );
    // Without watching nothing is told.
    let (status, found) = doctor(&database);
    assert_eq!((status, found.as_slice()), (0, [].as_slice()));
    let ran = thread::scope(|scope| {
        let watching = scope.spawn(|| database.lockapi(["doctor", "--json", "--watch", "3s"]));
        for turn in 0.. {
            if watching.is_finished() {
                break;
            }
            database.sql(&format!(
                "UPDATE lockapi.lease
                    SET fence = fence + 1, acquired_at = clock_timestamp(),
                        owner = CASE WHEN key = 'alone' THEN owner ELSE 'node-' || {turn} % 2 END
                  WHERE key <> 'steady'"
            ));
            thread::sleep(std::time::Duration::from_millis(100));
        }
        watching.join().expect("it ends")
    });
    let ran = ran.exits(3);
    let found = ran.json();
    let found = found.as_array().expect("an array");
    assert!(
        has(found, "flapping_leader", "default/scheduler"),
        "{found:#?}"
    );
    assert!(
        has(found, "flapping_lease", "default/nightly"),
        "{found:#?}"
    );
    assert_eq!(found.len(), 2, "{found:#?}");
    let quiet = database.lockapi(["doctor", "--json", "--watch", "1s"]);
    quiet.succeeds().shows("[]");
    let empty = Database::empty();
    let nothing = empty.lockapi(["doctor", "--json", "--watch", "1s"]);
    nothing.exits(4).shows("no_schema");
    let long = database.lockapi(["doctor", "--watch", "11m"]);
    long.exits(2).tells("from 1s to 10m");
}

/// Poolers that share sessions are found, and the database behind them is examined all the same; one that keeps a session
/// for each client is none.
#[test]
fn poolers_are_found() {
    let database = Database::new();
    database.sql("ALTER TABLE lockapi.id_block SET UNLOGGED");
    let through = |sessions: usize, mode: &str| {
        let proxy = Proxy::start(database.port(), "postgres", sessions, mode).expect("a pooler");
        let mut command = program();
        command
            .env("DATABASE_URL", database.url_at(proxy.port()))
            .args(["doctor", "--json", "--watch", "1s"]);
        let ran = run(command).exits(4);
        ran.json().as_array().expect("an array").clone()
    };
    for sessions in [1, 3] {
        let found = through(sessions, "transaction");
        assert!(has(&found, "pooler", "the connection"), "{found:#?}");
        assert!(has(&found, "unlogged", "id_block"), "{found:#?}");
        assert_eq!(found.len(), 2, "{found:#?}");
    }
    let found = through(3, "statement");
    assert!(
        has(&found, "statement_pooler", "the connection"),
        "{found:#?}"
    );
    assert_eq!(found.len(), 1, "{found:#?}");
    let found = through(5, "session");
    assert!(has(&found, "unlogged", "id_block"), "{found:#?}");
    assert_eq!(found.len(), 1, "{found:#?}");
}

/// What others have made is not called, also where it fits better than what PostgreSQL has.
#[test]
fn operators_of_others_are_not_called() {
    let database = Database::new();
    database.sql(
        "CREATE FUNCTION public.called(numeric, integer) RETURNS numeric
             LANGUAGE plpgsql AS 'BEGIN RAISE ''of another''; END';
         CREATE OPERATOR public.* (LEFTARG = numeric, RIGHTARG = integer, FUNCTION = public.called);
         CREATE FUNCTION public.called(bigint, interval) RETURNS interval
             LANGUAGE plpgsql AS 'BEGIN RAISE ''of another''; END';
         CREATE OPERATOR public.* (LEFTARG = bigint, RIGHTARG = interval, FUNCTION = public.called)",
    );
    let one = "SELECT 1::bigint * interval '1 second'";
    let called = database.try_sql(one).expect_err("it is called");
    assert!(called.contains("of another"), "{called}");
    let watch = ["doctor", "--json", "--watch", "1s"];
    database.lockapi(watch).succeeds().shows("[]");
    let proxy = Proxy::start(database.port(), "postgres", 2, "transaction").expect("a pooler");
    let mut command = program();
    command
        .env("DATABASE_URL", database.url_at(proxy.port()))
        .args(watch);
    let found = run(command).succeeds().json();
    let found = found.as_array().expect("an array");
    assert!(has(found, "pooler", "the connection"), "{found:#?}");
    assert_eq!(found.len(), 1, "{found:#?}");
}

#[test]
fn a_standby_and_an_unreachable_server_are_told() {
    let cluster = Cluster::standby(&[]).expect("a server");
    let mut command = program();
    command
        .env("DATABASE_URL", cluster.url())
        .args(["doctor", "--json", "--watch", "1s"]);
    let ran = run(command).exits(4);
    assert!(has(
        ran.json().as_array().expect("an array"),
        "standby",
        "the server"
    ));
    drop(cluster);
    let mut command = program();
    command.args(["doctor", "--url", "postgres://127.0.0.1:1/nowhere"]);
    run(command).exits(122).tells("connect");
}

/// A role that may read nothing is told, and what it may read is examined.
#[test]
fn what_a_role_may_not_read_is_told() {
    let database = Database::new();
    let role = format!("{}_nobody", database.name);
    database.sql(&format!("CREATE ROLE {role} LOGIN"));
    let mut command = program();
    let url = database.url().replace("postgres@", &format!("{role}@"));
    command
        .env("DATABASE_URL", url)
        .args(["doctor", "--json", "--watch", "1s"]);
    let ran = run(command).exits(3);
    assert!(
        has(
            ran.json().as_array().expect("an array"),
            "unreadable",
            "lockapi"
        ),
        "{ran:?}"
    );
    database.sql(&format!("DROP ROLE {role}"));
}

#[test]
fn what_is_expected_is_what_migrations_make() {
    let database = Database::new();
    let objects = include_str!("../../lockapi/src/admin/examine/objects.sql");
    let rows = database.sql(&format!("{};", objects.trim_end()));
    // The text of an index may have further ones.
    let made = rows.lines().map(|row| row.replacen('|', "\t", 2) + "\n");
    let made: String = made.collect();
    if let Ok(file) = std::env::var("LOCKAPI_WRITE_SCHEMA") {
        std::fs::write(file, &made).expect("written");
    }
    let lines = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert!(
        lines(&made) == lines(lockapi::admin::EXPECTED),
        "lockapi/src/admin/examine/schema.txt is not what the migrations make; \
         LOCKAPI_WRITE_SCHEMA=…/schema.txt cargo test -p lockapi-console --test doctor what_is_expected writes it"
    );
}
