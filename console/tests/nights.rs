//! The commands under "Six incidents" in `docs/operating.md` work as they are written.

mod common;

use std::process::{Child, Command, Stdio};

use common::{Database, ran, soon};

const GUIDE: &str = include_str!("../../docs/operating.md");

/// The lines of shell under a heading of the guide, with the exit status that each has.
fn lines(heading: &str) -> Vec<(String, i32)> {
    let (_, rest) = GUIDE
        .split_once(&format!("\n### {heading}\n"))
        .expect("the heading");
    let night = rest.split("\n#").next().expect("a night");
    let blocks = night.split("```sh\n").skip(1);
    let lines = blocks.flat_map(|block| block.split("```").next().expect("a block").lines());
    let line = |line: &str| {
        let status = line
            .split_once("exits with ")
            .map_or("0", |(_, status)| status);
        (line.to_owned(), status.trim().parse().expect("a status"))
    };
    lines.map(line).collect()
}

/// Runs a night from its first line to its last.
fn run_night(database: &Database, heading: &str) {
    let lines = lines(heading);
    assert!(lines.len() > 2, "{lines:?}");
    let programs = std::path::Path::new(env!("CARGO_BIN_EXE_lockapi"));
    let programs = programs.parent().expect("a directory").display();
    let path = std::env::var("PATH").expect("a path");
    for (line, status) in lines {
        let mut command = Command::new("sh");
        command
            .args(["-c", &line])
            .env("PATH", format!("{programs}:{path}"));
        command
            .env("DATABASE_URL", database.url())
            .stdin(Stdio::null());
        let ran = ran(&command.output().expect("a shell"));
        assert_eq!(ran.status, status, "{line}: {ran:?}");
    }
}

fn hold(database: &Database, arguments: &[&str]) -> Child {
    let mut command = database.command();
    command
        .arg("exec")
        .args(arguments)
        .args(["--", "sleep", "60"]);
    command.stderr(Stdio::null()).spawn().expect("the program")
}

#[test]
fn a_stuck_job() {
    let database = Database::new();
    database.sql(
        "INSERT INTO lockapi.job (id, run_at, started_at, lease_until, token, attempt, worker, max_attempts, priority,
                                  namespace, queue, name, payload)
         OVERRIDING SYSTEM VALUE
         VALUES (4711, now() - interval '2 hours', now() - interval '2 hours', now() + interval '1 hour', 1, 1, 'node-7', 3, 2,
                 'default', 'mails', 'welcome', '{}')",
    );
    run_night(&database, "A stuck job");
    assert_eq!(
        database.sql("SELECT status FROM lockapi.job_archive WHERE id = 4711"),
        "cancelled"
    );
    assert_eq!(
        database.sql("SELECT reason FROM lockapi.audit"),
        "node-7 hangs in the mail server"
    );
}

#[test]
fn a_job_that_has_to_run_now() {
    let database = Database::new();
    database.sql(
        "INSERT INTO lockapi.job (id, run_at, max_attempts, priority, namespace, queue, name, payload)
         OVERRIDING SYSTEM VALUE
         VALUES (4711, now() + interval '2 hours', 3, 2, 'default', 'mails', 'welcome', '{}')",
    );
    run_night(&database, "A job that has to run now");
    let seen = "SELECT (extract(year FROM run_at), priority, max_attempts, payload ->> 'to') FROM lockapi.job";
    assert_eq!(database.sql(seen), "(2030,0,30,ada@example.com)");
    assert_eq!(database.sql("SELECT count(*) FROM lockapi.audit"), "3");
}

#[test]
fn a_lock_that_nobody_releases() {
    let database = Database::new();
    let mut mutex = hold(&database, &["--mutex", "reports/daily"]);
    let mut lease = hold(&database, &["--lease", "cleanup", "--ttl", "2s"]);
    soon("both are held", || {
        let locked =
            "SELECT NOT pg_try_advisory_lock(lockapi.advisory_key('default', 'reports/daily'))";
        let held = "SELECT count(*) FROM lockapi.lease_view WHERE held";
        (database.sql(locked) == "t" && database.sql(held) == "1").then_some(())
    });
    run_night(&database, "A lock that nobody releases");
    for holder in [&mut mutex, &mut lease] {
        assert_eq!(holder.wait().expect("it ends").code(), Some(121));
    }
}

#[test]
fn a_queue_that_grows() {
    let database = Database::new();
    database.sql(
        "INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, name, payload)
         SELECT now() - interval '1 hour', 3, 2, 'default', 'mails', 'welcome', '{}' FROM generate_series(1, 50);
         INSERT INTO lockapi.job_archive (id, status, run_at, created_at, attempt, max_attempts, priority, namespace, queue, name,
                                          payload, error)
         VALUES (100000, 'failed', now(), now(), 3, 3, 2, 'default', 'mails', 'welcome', '{}', 'no connection')",
    );
    run_night(&database, "A queue that grows");
    assert_eq!(database.sql("SELECT count(*) FROM lockapi.job"), "51");
    assert_eq!(database.sql("SELECT paused FROM lockapi.queue"), "f");
}

#[test]
fn a_limit_that_is_wrong() {
    let database = Database::new();
    database
        .lockapi(["limit", "take", "user:123:api", "--quota", "100/1m"])
        .succeeds();
    run_night(&database, "A limit that is wrong");
}

#[test]
fn a_migration_that_waits() {
    let database = Database::empty();
    // As a program of an earlier version has left it, before there were views of waits.
    let earlier = lockapi::MIGRATIONS.iter();
    for migration in earlier.take_while(|migration| migration.name != "admin") {
        database.sql(&format!(
            "BEGIN; {}; INSERT INTO lockapi.migration (version, name, checksum) VALUES ({}, '{}', '{}'); COMMIT",
            migration.sql,
            migration.version,
            migration.name,
            migration.checksum()
        ));
    }
    run_night(&database, "A migration that waits");
}
