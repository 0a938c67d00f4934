//! What the commands show and do.

mod common;

use std::collections::BTreeSet;
use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Database, program, run, run_with_input};
use lockapi::BackendOptions;
use lockapi::id::IdOptions;
use lockapi::queue::{Claim, Job, QueueOptions};
use serde_json::Value;

#[test]
fn a_schema_is_made_looked_at_and_planned() {
    let database = Database::empty();
    let missing = database.lockapi(["migrate", "status"]).exits(3);
    missing.shows("missing");
    // What a person runs by hand is what the program would have done.
    let plan = database.lockapi(["migrate", "plan"]).succeeds();
    database.sql(&plan.out);
    let applied = database.lockapi(["migrate", "status", "--json"]).succeeds();
    let steps = applied.json();
    let steps = steps.as_array().expect("an array");
    assert_eq!(steps.len(), lockapi::MIGRATIONS.len());
    assert!(
        steps.iter().all(|step| step["state"] == "applied"),
        "{steps:?}"
    );
    database
        .lockapi(["migrate", "up"])
        .succeeds()
        .shows("version");
    database
        .lockapi(["migrate", "plan"])
        .succeeds()
        .shows("Nothing is missing");
    database.sql("UPDATE lockapi.migration SET checksum = 'x' WHERE version = 2");
    database
        .lockapi(["migrate", "status"])
        .exits(4)
        .shows("another text");
    database
        .lockapi(["migrate", "plan"])
        .exits(1)
        .tells("another text");
    let all = database.lockapi(["migrate", "plan", "--all"]).succeeds();
    assert_eq!(all.out, plan.out);
}

#[test]
fn a_role_has_the_rights_of_its_task() {
    let database = Database::new();
    let role = format!("{}_worker", database.name);
    database
        .lockapi(["migrate", "grants", "worker", &role, "--check"])
        .exits(5)
        .tells("there is no role");
    database.sql(&format!("CREATE ROLE {role}"));
    let lacks = database
        .lockapi(["migrate", "grants", "worker", &role, "--check"])
        .exits(4);
    lacks.shows("lacks it");
    let grants = database
        .lockapi(["migrate", "grants", "worker", &role])
        .succeeds();
    database.sql(&grants.out);
    database
        .lockapi(["migrate", "grants", "worker", &role, "--check"])
        .succeeds()
        .shows("no others");
    database.sql(&format!("GRANT DELETE ON lockapi.audit TO {role}"));
    let more = database
        .lockapi(["migrate", "grants", "worker", &role, "--check", "--json"])
        .exits(3);
    assert_eq!(more.json()[0]["excess"], true);
    database.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[test]
fn jobs_are_pushed_looked_up_cancelled_and_revived() {
    let database = Database::new();
    let push = |arguments: &[&str]| {
        let pushed = database.lockapi([&["queue", "push", "mails"], arguments].concat());
        pushed.succeeds().out.trim().to_owned()
    };
    let first = push(&["welcome", r#"{"to":"ada"}"#]);
    let later = push(&["welcome", "--delay", "1h", "--priority", "low"]);
    let unique = push(&["digest", "--unique", "digest/ada"]);
    assert_eq!(push(&["digest", "--unique", "digest/ada"]), unique);
    let mut command = database.command();
    command.args(["queue", "push", "mails", "import", "-"]);
    run_with_input(command, Some("[1,2,3]")).succeeds();
    database
        .lockapi(["queue", "push", "mails", "bad", "{"])
        .exits(2)
        .tells("not JSON");

    database
        .lockapi(["queue", "list"])
        .succeeds()
        .shows("mails");
    let counts = database
        .lockapi(["queue", "show", "mails", "--json"])
        .succeeds()
        .json();
    assert_eq!(
        (&counts["ready"]["count"], &counts["delayed"]["count"]),
        (&3.into(), &1.into())
    );
    let jobs = database
        .lockapi(["queue", "jobs", "mails", "--json"])
        .succeeds()
        .json();
    assert_eq!(jobs["jobs"].as_array().expect("an array").len(), 4);
    assert_eq!(jobs["next"], serde_json::Value::Null);
    let delayed = database
        .lockapi(["queue", "jobs", "mails", "--state", "delayed", "--json"])
        .succeeds()
        .json();
    assert_eq!(delayed["jobs"][0]["id"], later.as_str());
    // Page by page, all of them once.
    let (mut seen, mut after) = (Vec::new(), None::<String>);
    loop {
        let mut arguments = vec!["queue", "jobs", "mails", "--limit", "1", "--json"];
        if let Some(after) = &after {
            arguments.extend(["--after", after]);
        }
        let page = database.lockapi(arguments).succeeds().json();
        for job in page["jobs"].as_array().expect("an array") {
            seen.push(job["id"].as_str().expect("a number").to_owned());
        }
        match page["next"].as_str() {
            Some(next) => after = Some(next.to_owned()),
            None => break,
        }
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
    assert_eq!(seen.last(), Some(&later), "the lowest priority comes last");

    let shown = database.lockapi(["queue", "job", &first]).succeeds();
    shown.shows("ready").shows(r#"{"to":"ada"}"#);
    database
        .lockapi(["queue", "cancel", "mails", &first, "--reason", "a mistake"])
        .succeeds();
    database
        .lockapi(["queue", "job", &first])
        .succeeds()
        .shows("cancelled")
        .shows("a mistake");
    database
        .lockapi(["queue", "cancel", "mails", &first, "--reason", "again"])
        .exits(5)
        .tells("no job");
    database.lockapi(["queue", "job", "999999999"]).exits(5);
    database
        .lockapi(["queue", "cancel", "mails", &later])
        .exits(2)
        .tells("--reason");
}

#[test]
fn headers_are_pushed_and_shown() {
    let database = Database::new();
    let headers = ["--header", "X-Tenant=a=b", "--header", "traceparent="];
    let pushed = database.lockapi([&["queue", "push", "mails", "digest"], &headers[..]].concat());
    let id = pushed.succeeds().out.trim().to_owned();
    for (wrong, why) in [
        ("tenant", "allowed is a name, an equals sign and a value"),
        ("a b=c", "visible ASCII"),
    ] {
        database
            .lockapi(["queue", "push", "mails", "bad", "--header", wrong])
            .exits(2)
            .tells(why);
    }
    let shown = |more: &[&str]| {
        let arguments = [&["queue", "job", &id], more].concat();
        database.lockapi(arguments).succeeds()
    };
    shown(&[])
        .shows("header    traceparent=\n")
        .shows("header    x-tenant=a=b");
    let json = shown(&["--json"]).json();
    assert_eq!(json["headers"]["x-tenant"], "a=b");
    assert_eq!(json["headers"]["traceparent"], "");
    let masked = shown(&["--masked", "--json"]).json();
    assert!(masked.get("headers").is_none(), "{masked}");
    // A dead letter, as a worker leaves it.
    database.sql(
        "WITH gone AS (DELETE FROM lockapi.job RETURNING *)
         INSERT INTO lockapi.job_archive (id, status, run_at, created_at, attempt, max_attempts, priority,
                                          namespace, queue, name, payload, headers)
         SELECT id, 'failed', run_at, created_at, 20, 20, priority, namespace, queue, name, payload, headers FROM gone",
    );
    let dead = |more: &[&str]| {
        let arguments = [&["queue", "dead", "mails", "--json"], more].concat();
        database.lockapi(arguments).succeeds().json()
    };
    assert_eq!(dead(&["--payloads"])[0]["headers"]["x-tenant"], "a=b");
    assert!(dead(&[])[0].get("headers").is_none());
}

#[test]
fn queues_are_paused_purged_and_revived() {
    let database = Database::new();
    for name in ["welcome", "digest", "import"] {
        database
            .lockapi(["queue", "push", "mails", name])
            .succeeds();
    }
    // A dead letter, as a worker leaves it.
    database.sql(
        "WITH gone AS (DELETE FROM lockapi.job WHERE name = 'digest' RETURNING *)
         INSERT INTO lockapi.job_archive (id, status, run_at, created_at, attempt, max_attempts, priority, worker, error,
                                          namespace, queue, unique_key, name, payload)
         SELECT id, 'failed', run_at, created_at, 20, 20, priority, 'node-7', 'it \x1b[31mfailed', namespace, queue,
                unique_key, name, payload FROM gone"
    );
    let dead = database.lockapi(["queue", "dead", "mails"]).succeeds();
    assert!(
        dead.out.contains("failed") && !dead.out.contains('\x1b'),
        "{dead:?}"
    );
    database
        .lockapi(["queue", "redrive", "mails", "1234567", "--reason", "fixed"])
        .exits(5);
    database
        .lockapi(["queue", "redrive", "mails", "--all", "--reason", "fixed"])
        .succeeds()
        .shows("1 put back");

    database
        .lockapi(["queue", "pause", "mails", "--reason", "an outage"])
        .succeeds();
    database
        .lockapi(["queue", "show", "mails"])
        .succeeds()
        .shows("paused");
    database
        .lockapi(["queue", "resume", "mails", "--reason", "over"])
        .succeeds();
    let would = database
        .lockapi(["queue", "purge", "mails", "--reason", "a test"])
        .succeeds();
    would.shows("3 jobs wait").shows("--yes");
    assert_eq!(database.sql("SELECT count(*) FROM lockapi.job"), "3");
    database
        .lockapi(["queue", "purge", "mails", "--yes", "--reason", "a test"])
        .succeeds()
        .shows("3 jobs were deleted");
    let audit = database.lockapi(["audit", "--json"]).succeeds().json();
    let actions: Vec<_> = audit
        .as_array()
        .expect("an array")
        .iter()
        .map(|act| act["action"].as_str())
        .collect();
    let expected = ["purge queue", "resume queue", "pause queue", "redrive"];
    assert_eq!(actions, expected.map(Some));
    assert!(
        audit[0]["application"]
            .as_str()
            .is_some_and(|name| name.starts_with("lockapi")),
        "{audit}"
    );
}

#[test]
fn queues_are_paused_for_a_time_and_groups_by_name() {
    let database = Database::new();
    let change = |arguments: &[&str]| {
        let arguments = [arguments, &["--reason", "an outage"]].concat();
        database.lockapi(arguments)
    };
    change(&["queue", "pause", "mails", "--for", "2h"]).succeeds();
    let shown = database.lockapi(["queue", "show", "mails"]).succeeds();
    shown.shows("paused for 1h 59m");
    let shown = database.lockapi(["queue", "show", "mails", "--json"]);
    let shown = shown.succeeds().json();
    let left = shown["resumes_in_seconds"].as_f64().expect("a time");
    assert!(7000.0 < left && left <= 7200.0, "{left}");
    let refused = change(&["queue", "pause", "mails", "--for", "0s"]).exits(2);
    assert!(refused.err.contains("allowed"), "{refused:?}");
    change(&["queue", "pause", "mails", "--for", "2h", "--group", "a"]).exits(2);
    change(&["queue", "resume", "mails"]).succeeds();

    let limits = || database.sql("SELECT group_key, most FROM lockapi.group_limit");
    change(&["queue", "pause", "mails", "--group", "tenant-7"]).succeeds();
    assert_eq!(limits(), "tenant-7|0");
    change(&["queue", "resume", "mails", "--group", "tenant-7"]).succeeds();
    assert_eq!(limits(), "");
    let audit = database.lockapi(["audit", "--json"]).succeeds().json();
    assert_eq!(audit[0]["action"], "resume group");
    assert_eq!(audit[0]["target"], "mails/tenant-7");
    let rates = || database.sql("SELECT most, permits, burst FROM lockapi.group_limit");
    let limit = ["queue", "limit", "mails", "--group", "tenant-7"];
    change(&[&limit[..], &["--rate", "10/1m,3"]].concat()).succeeds();
    assert_eq!(rates(), "|10|3");
    change(&[&limit[..], &["--running", "5"]].concat()).succeeds();
    assert_eq!(rates(), "5||");
    change(&[&limit[..], &["--running", "1001"]].concat()).exits(2);
    change(&[&limit[..], &["--clear"]].concat()).succeeds();
    assert_eq!(rates(), "");
    let audit = database.lockapi(["audit", "--json"]).succeeds().json();
    assert_eq!(audit[0]["action"], "unlimit group");
    assert_eq!(audit[0]["target"], "mails/tenant-7");

    let names = || {
        database
            .sql("SELECT name, paused_until > now() + interval '1 hour' FROM lockapi.paused_name")
    };
    let pause = ["queue", "pause", "mails", "--name", "welcome"];
    change(&pause).succeeds();
    assert_eq!(names(), "welcome|");
    change(&[&pause[..], &["--for", "2h"]].concat()).succeeds();
    assert_eq!(names(), "welcome|t");
    change(&[&pause[..], &["--group", "a"]].concat()).exits(2);
    change(&["queue", "resume", "mails", "--name", "welcome"]).succeeds();
    assert_eq!(names(), "");
    let audit = database.lockapi(["audit", "--json"]).succeeds().json();
    assert_eq!(audit[0]["action"], "resume name");
    assert_eq!(audit[0]["target"], "mails/welcome");
}

#[test]
fn queues_are_limited() {
    let database = Database::new();
    let limit = |more: &[&str]| {
        let common = ["queue", "limit", "mails", "--reason", "the server is slow"];
        database.lockapi([&common, more].concat())
    };
    limit(&[]).exits(2);
    limit(&["--running", "0"]).exits(2);
    limit(&["--running", "2", "--clear"]).exits(2);
    limit(&["--running", "20", "--rate", "10/s,3"]).succeeds();
    let show = || database.lockapi(["queue", "show", "mails"]).succeeds();
    show().shows("limit: 0 of 20 run, 10 are claimed in 1s, 3 at once");
    let shown = database
        .lockapi(["queue", "show", "mails", "--json"])
        .succeeds()
        .json();
    assert_eq!(shown["limit"]["running"], 20);
    assert_eq!(shown["limit"]["rate"]["burst"], 3);
    let audit = database.lockapi(["audit", "--json"]).succeeds().json();
    assert_eq!(audit[0]["action"], "limit queue");
    assert_eq!(audit[0]["reason"], "the server is slow");
    limit(&["--clear"]).succeeds();
    let count = "SELECT count(*) FROM lockapi.queue_limit";
    assert_eq!(database.sql(count), "0");
}

#[test]
fn queues_are_drained() {
    let database = Database::new();
    let drain = |more: &[&str]| {
        let common = ["queue", "drain", "mails", "--reason", "a deployment"];
        database.lockapi([&common, more].concat())
    };
    drain(&[]).succeeds().shows("drained: no job runs");
    database
        .lockapi(["queue", "push", "mails", "welcome"])
        .succeeds();
    // As a worker has it.
    database.sql(
        "UPDATE lockapi.job SET token = 1, attempt = 1, lease_until = now() + interval '1 hour'",
    );
    let busy = drain(&["--timeout", "100ms", "--for", "2h", "--json"]).exits(120);
    let busy = busy.json();
    assert_eq!(
        (&busy["drained"], &busy["running"]),
        (&false.into(), &1.into())
    );
    let shown = database.lockapi(["queue", "show", "mails"]).succeeds();
    shown.shows("paused for 1h 59m");
    drain(&["--timeout", "0s"])
        .exits(120)
        .shows("1 jobs still run");
    drain(&["--for", "0s"]).exits(2);
    database.sql("UPDATE lockapi.job SET lease_until = now()");
    drain(&["--timeout", "1m"]).succeeds();
    let audit = database.lockapi(["audit", "--json"]).succeeds().json();
    assert_eq!(audit[0]["action"], "drain queue");
    assert_eq!(audit[0]["target"], "mails");
    assert_eq!(audit[0]["reason"], "a deployment");
}

#[test]
fn tasks_are_set_run_and_disabled() {
    let database = Database::new();
    let why = ["--reason", "a test"];
    let task = |arguments: &[&str]| database.lockapi([&["schedule"], arguments, &why].concat());
    task(&[
        "set",
        "night",
        "vacuum",
        "vacuum",
        r#""all""#,
        "--cron",
        "0 3 * * *",
        "--zone",
        "Europe/Berlin",
    ])
    .succeeds();
    task(&[
        "set",
        "night",
        "metrics",
        "collect",
        "--every",
        "30s",
        "--timeout",
        "5m",
    ])
    .succeeds();
    task(&["set", "night", "never", "x"])
        .exits(2)
        .tells("--every");
    task(&["set", "night", "never", "x", "--cron", "61 * * * *"]).exits(2);
    let list = database.lockapi(["schedule", "list", "night"]).succeeds();
    list.shows("0 3 * * * (Europe/Berlin)").shows("every 30.0s");
    task(&["set", "day", "mails", "collect", "--every", "1h"]).succeeds();
    let all = database.lockapi(["schedule", "list", "--json"]).succeeds();
    let all = all.json();
    let all = all.as_array().expect("an array").iter();
    let all: Vec<_> = all
        .map(|task| (&task["scheduler"], &task["name"]))
        .collect();
    let [day, night] = ["day", "night"].map(Value::from);
    let [mails, metrics, vacuum] = ["mails", "metrics", "vacuum"].map(Value::from);
    assert_eq!(all, [(&day, &mails), (&night, &metrics), (&night, &vacuum)]);
    task(&["run", "night", "vacuum"])
        .succeeds()
        .shows("pending");
    let runs = database
        .lockapi(["schedule", "runs", "night", "vacuum", "--json"])
        .succeeds()
        .json();
    assert_eq!(runs[0]["status"], "pending");
    task(&["disable", "night", "vacuum"]).succeeds();
    database
        .lockapi(["schedule", "list", "night"])
        .succeeds()
        .shows("disabled");
    task(&["enable", "night", "vacuum"]).succeeds();
    task(&["remove", "night", "vacuum"]).succeeds();
    task(&["remove", "night", "vacuum"])
        .exits(5)
        .tells("has no task");
}

#[test]
fn locks_leases_and_limits_are_seen_and_taken() {
    let database = Database::new();
    database
        .lockapi(["lock", "release", "door", "--reason", "stuck"])
        .exits(5)
        .tells("nobody holds door");
    database
        .lockapi(["lease", "release", "door", "--reason", "stuck"])
        .exits(5)
        .tells("nobody holds door");
    let mut holder = database.command();
    holder.args(["exec", "--mutex", "door", "--", "sleep", "60"]);
    let mut holder = holder.spawn().expect("the program");
    let mut leader = database.command();
    leader.args([
        "exec", "--leader", "door", "--owner", "node-7", "--ttl", "3s", "--", "sleep", "60",
    ]);
    let mut leader = leader.spawn().expect("the program");
    common::soon("both hold", || {
        let locks = database
            .lockapi(["lock", "list", "door", "--json"])
            .succeeds()
            .json();
        let leases = database
            .lockapi(["lease", "list", "--json"])
            .succeeds()
            .json();
        let both = locks.as_array().is_some_and(|locks| locks.len() == 1)
            && leases[0]["owner"] == "node-7";
        both.then_some(())
    });
    database
        .lockapi(["lease", "list"])
        .succeeds()
        .shows("leader")
        .shows("node-7");
    database
        .lockapi(["lock", "waits", "--everywhere"])
        .succeeds();
    database
        .lockapi(["lock", "release", "door", "--reason", "node-7 is stuck"])
        .succeeds()
        .shows("ended session");
    assert_eq!(holder.wait().expect("it ends").code(), Some(121));
    database
        .lockapi(["lease", "release", "door", "--reason", "node-7 is stuck"])
        .succeeds()
        .shows("node-7");
    assert_eq!(leader.wait().expect("it ends").code(), Some(121));

    let quota = ["--quota", "2/1h"];
    let limit = |arguments: &[&str]| database.lockapi([&["limit"], arguments].concat());
    limit(&[&["take", "api"], &quota[..]].concat())
        .succeeds()
        .shows("1 of 2 left");
    limit(&[&["take", "api"], &quota[..]].concat()).succeeds();
    limit(&[&["take", "api"], &quota[..]].concat())
        .exits(120)
        .shows("refused");
    limit(&[&["show", "api"], &quota[..]].concat())
        .succeeds()
        .shows("refused");
    limit(&["reset", "api", "--reason", "a wrong quota"]).succeeds();
    limit(&[&["show", "api"], &quota[..]].concat())
        .succeeds()
        .shows("allowed; 2 of 2 left");
    limit(&["block", "api", "10m", "--reason", "abuse"]).succeeds();
    limit(&[&["take", "api"], &quota[..]].concat()).exits(120);
    limit(&["take", "web", "--quota", "5/1d"]).succeeds();
    limit(&["list"]).succeeds().shows("9m").shows("web");
    let list = limit(&["list", "--limit", "1", "--json"]).succeeds().json();
    let [api] = list.as_array().expect("an array").as_slice() else {
        panic!("{list}");
    };
    assert_eq!(api["key"], "api");
    assert!(api["blocked_seconds"].as_f64() > Some(500.0), "{api}");
    let list = limit(&["list", "--after", "api", "--json"]).succeeds();
    let list = list.json();
    assert_eq!((&list[0]["key"], &list[1]), (&"web".into(), &Value::Null));
    let day = list[0]["backlog_seconds"].as_f64().expect("a number");
    assert!((17_000.0..=17_280.0).contains(&day), "a fifth of it: {day}");
    assert!(list[0]["blocked_seconds"].is_null());
}

#[test]
fn ids_are_unique_and_can_be_read() {
    let database = Database::new();
    let made = database
        .lockapi(["id", "next", "orders", "--count", "100"])
        .succeeds();
    let ids: Vec<i64> = made
        .out
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect();
    assert!(
        ids.len() == 100 && ids.is_sorted_by(|one, other| one < other),
        "{ids:?}"
    );
    database
        .lockapi(["id", "decode", &ids[0].to_string()])
        .succeeds()
        .shows("worker");
    let blocks = database
        .lockapi(["id", "next", "invoices", "--blocks", "10", "--json"])
        .succeeds();
    assert_eq!(blocks.json()[0], "1");
    database.lockapi(["id", "decode", "-5"]).exits(2);
}

/// The best of some, on a machine that does other things as well.
#[test]
fn it_starts_at_once() {
    let most = if cfg!(debug_assertions) { 200 } else { 50 };
    let start = |_| {
        let begun = Instant::now();
        let mut command = program();
        command.args(["id", "decode", "1234567890123"]);
        run(command).succeeds();
        begun.elapsed()
    };
    let best = (0..20).map(start).min().expect("some");
    assert!(best < Duration::from_millis(most), "{best:?}");
}

/// More than fit into memory, for a reader that has enough of them soon.
#[test]
fn ids_are_printed_as_they_are_made() {
    let database = Database::new();
    for json in [&[][..], &["--json"]] {
        let mut command = database.command();
        command.args(["id", "next", "orders", "--count", "18446744073709551615"]);
        command.args(json).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program");
        let mut out = child.stdout.take().expect("a pipe");
        let mut read = vec![0; 200_000];
        out.read_exact(&mut read).expect("ids");
        drop(out);
        assert!(child.wait().expect("it ends").success(), "{json:?}");
        let text = String::from_utf8(read).expect("text");
        let mut ids: Vec<&str> = text
            .split(|letter: char| !letter.is_ascii_digit())
            .filter(|id| !id.is_empty())
            .collect();
        ids.pop();
        let unlike: BTreeSet<&&str> = ids.iter().collect();
        assert!(ids.len() > 9_000 && unlike.len() == ids.len(), "{json:?}");
    }
    for (count, told) in [("0", "[]\n"), ("1", "[\"1\"]\n")] {
        let next = [
            "id", "next", "invoices", "--blocks", "10", "--json", "--count", count,
        ];
        assert_eq!(database.lockapi(next).succeeds().out, told);
    }
    let none = database.lockapi(["id", "next", "invoices", "--count", "0"]);
    assert_eq!(none.succeeds().out, "");
}

/// Each id that was made is printed, and what is printed ends as lines do.
#[test]
fn ids_that_were_made_before_a_failure_are_printed() {
    let database = Database::new();
    let next = |more: &[&str]| {
        let begin = ["id", "next", "invoices", "--blocks", "4"];
        database.lockapi([&begin[..], more].concat())
    };
    assert_eq!(next(&[]).succeeds().out, "1\n");
    let few_left = || database.sql("UPDATE lockapi.id_block SET next = 9223372036854775807 - 20");
    few_left();
    let made = next(&["--count", "100"]).exits(1);
    let ids: Vec<&str> = made.out.lines().collect();
    assert!(ids.len() >= 4 && made.out.ends_with('\n'), "{made:?}");
    for id in ids {
        assert_eq!(id.len(), "9223372036854775807".len(), "{made:?}");
    }
    few_left();
    let made = next(&["--count", "100", "--json"]).exits(1);
    assert!(made.out.starts_with("[\"92233"), "{made:?}");
    assert!(made.out.ends_with("\"\n"), "{made:?}");
    assert_eq!(made.out.lines().count(), 1, "{made:?}");
    let none = next(&["--json"]).exits(1);
    assert_eq!(none.out, "");
}

/// The log has what was done, and not what was refused.
#[test]
fn what_is_refused_is_not_recorded() {
    let database = Database::new();
    for (act, told) in [
        (&["limit", "block", "a", "400days"][..], "366 days"),
        (
            &["queue", "pause", "mails", "--for", "40000days"],
            "allowed",
        ),
        (
            &["queue", "pause", "mails", "--name", "", "--for", "1m"],
            "allowed",
        ),
        (
            &["queue", "drain", "mails", "--for", "40000days"],
            "allowed",
        ),
        (&["queue", "limit", "mails", "--running", "0"], "allowed"),
        (
            &[
                "schedule", "set", "upkeep", "vacuum", "vacuum", "--every", "1ms",
            ],
            "allowed",
        ),
        (&["schedule", "run", "upkeep", ""], "allowed"),
    ] {
        let refused = database.lockapi([act, &["--reason", "a test"]].concat());
        refused.exits(2).tells(told);
    }
    let audit = database.lockapi(["audit", "--json"]).succeeds();
    assert_eq!(audit.out, "[]\n");
}

/// The log has what was done, and nothing of what was not there; what is done to all there are is done to none as well.
#[test]
fn what_is_absent_is_told_and_not_recorded() {
    let database = Database::new();
    let job = database.lockapi(["queue", "push", "mails", "send"]);
    let job = job.succeeds().out.trim().to_owned();
    database
        .lockapi(["limit", "take", "b", "--quota", "9/1h"])
        .succeeds();
    let act = |arguments: &[&str]| database.lockapi([arguments, &["--reason", "a test"]].concat());
    for (arguments, told) in [
        (&["lease", "release", "a"][..], "nobody holds a"),
        (&["lock", "release", "a"], "nobody holds a"),
        (&["limit", "reset", "a"], "nothing is kept of the limit a"),
        (&["limit", "block", "a", "0s"], "nothing is kept"),
        (&["queue", "cancel", "mails", "999999"], "waits or runs"),
        (
            &["queue", "edit", "mails", "999999", "--now"],
            "no job 999999",
        ),
        (&["queue", "edit", "other", &job, "--now"], "waits in"),
        (&["queue", "redrive", "mails", &job], "none of these"),
        (
            &["queue", "discard", "mails", &job, "999999"],
            "none of these",
        ),
        (&["queue", "resume", "nobody"], "nobody"),
        (&["schedule", "run", "upkeep", "vacuum"], "has no task"),
        (&["schedule", "enable", "upkeep", "vacuum"], "has no task"),
        (&["schedule", "disable", "upkeep", "vacuum"], "has no task"),
        (&["schedule", "remove", "upkeep", "vacuum"], "has no task"),
    ] {
        act(arguments).exits(5).tells(told);
    }
    for (arguments, told) in [
        (&["queue", "redrive", "mails", "--all"][..], "0 put back"),
        (&["queue", "discard", "mails", "--all"], "0 deleted"),
        (&["queue", "cancel", "nobody", "--all"], "0 cancelled"),
        (
            &["queue", "purge", "nobody", "--yes"],
            "0 jobs were deleted",
        ),
    ] {
        act(arguments).succeeds().shows(told);
    }
    let audit = database.lockapi(["audit", "--json"]).succeeds();
    assert_eq!(audit.out, "[]\n");
    act(&["limit", "reset", "b"]).succeeds();
    act(&["queue", "purge", "mails", "--yes"])
        .succeeds()
        .shows("1 jobs were deleted");
    let audit = database.lockapi(["audit", "--json"]).succeeds().json();
    let [purge, reset] = audit.as_array().expect("an array").as_slice() else {
        panic!("{audit}");
    };
    assert_eq!(purge["action"], "purge queue");
    assert_eq!(reset["action"], "reset limit");
}

#[test]
fn the_progress_of_jobs_is_shown() {
    let database = Database::new();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let url = database.url();
    let connecting = lockapi_sqlx::connect_url_with(&url, BackendOptions::default());
    let backend = runtime.block_on(connecting).expect("a backend");
    let queue = backend.queue("files").expect("a queue");
    let delivery = runtime.block_on(async {
        for number in 0..2 {
            let job = Job::new("convert", &number).expect("a job");
            queue.push(job).await.expect("pushed");
        }
        queue
            .claim(&Claim::new(1))
            .await
            .expect("claimed")
            .remove(0)
    });
    let words = "converted 40 of 100 files";
    delivery.progress(0.4, words).expect("reported");
    let id = delivery.id().to_string();
    let json = loop {
        let shown = database.lockapi(["queue", "job", &id, "--json"]);
        let shown = shown.succeeds().json();
        if shown["progress"].is_object() {
            break shown;
        }
    };
    assert_eq!(json["progress"]["fraction"].as_f64(), Some(0.4), "{json}");
    assert_eq!(json["progress"]["note"], words);
    assert!(json["progress"]["reported_at"].is_string(), "{json}");
    let shown = database.lockapi(["queue", "job", &id]).succeeds();
    shown.shows("progress  40% converted 40 of 100 files, told at ");
    let jobs = database.lockapi(["queue", "jobs", "files"]).succeeds();
    jobs.shows("PROGRESS")
        .shows("1/20     40% ")
        .shows("0/20     - ");
    let waiting = (delivery.id() + 1).to_string();
    let shown = database.lockapi(["queue", "job", &waiting]).succeeds();
    assert!(!shown.out.contains("progress"), "{}", shown.out);
    runtime.block_on(delivery.ack()).expect("done");
    runtime.block_on(backend.close()).expect("it closes");
}

#[test]
fn the_results_of_archived_jobs_are_shown() {
    let database = Database::new();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let url = database.url();
    let connecting = lockapi_sqlx::connect_url_with(&url, BackendOptions::default());
    let backend = runtime.block_on(connecting).expect("a backend");
    let archived = QueueOptions::default().archive(std::time::Duration::from_secs(1000));
    let queue = backend.queue_with("sums", archived).expect("a queue");
    let id = runtime.block_on(async {
        let job = Job::new("sum", &[1, 2]).expect("a job");
        let id = queue.push(job).await.expect("pushed").id;
        let mut claimed = queue.claim(&Claim::new(1)).await.expect("claimed");
        let delivery = claimed.remove(0);
        delivery.set_result(&("three", 3)).expect("a result");
        delivery.ack().await.expect("done");
        id.to_string()
    });
    let shown = database.lockapi(["queue", "job", &id]).succeeds();
    shown.shows("result    [\"three\",3]");
    let json = database.lockapi(["queue", "job", &id, "--json"]);
    assert_eq!(json.succeeds().json()["result"][1], 3);
    let masked = database.lockapi(["queue", "job", &id, "--masked"]);
    assert!(!masked.succeeds().out.contains("three"), "it is masked");
    runtime.block_on(backend.close()).expect("it closes");
}

#[test]
fn who_makes_ids_is_shown() {
    let database = Database::new();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let url = database.url();
    let connecting = lockapi_sqlx::connect_url_with(&url, BackendOptions::default());
    let backend = runtime.block_on(connecting).expect("a backend");
    let ids = backend.id_gen("orders", IdOptions::default());
    let ids = ids.expect("a generator");
    runtime.block_on(ids.next()).expect("an id");
    let listed = database.lockapi(["id", "workers", "--json"]).succeeds();
    let listed = listed.json();
    let [number] = listed.as_array().expect("an array").as_slice() else {
        panic!("{listed}");
    };
    assert_eq!(number["name"], "orders");
    assert!(number["remaining_seconds"].as_f64() > Some(0.0), "{number}");
    database
        .lockapi(["id", "workers"])
        .succeeds()
        .shows("HELD FOR")
        .shows("orders");
    runtime.block_on(backend.close()).expect("it closes");
}

#[test]
fn documents_are_made_of_the_arguments() {
    for shell in ["bash", "zsh", "fish"] {
        let mut command = program();
        command.args(["completions", shell]);
        let ran = run(command).succeeds().shows("exec");
        assert!(ran.out.len() > 1000, "{shell}");
    }
    let mut command = program();
    command.args(["man", "exec"]);
    run(command)
        .succeeds()
        .shows("LOCKAPI_FENCE")
        .shows("EXIT STATUS")
        .shows("121");
    let directory = tempfile::tempdir().expect("a directory");
    // It is made where there is none.
    let pages = directory.path().join("man");
    let mut command = program();
    command.args(["man", "--directory"]).arg(&pages);
    run(command).succeeds();
    for page in ["lockapi.1", "lockapi-exec.1", "lockapi-queue-push.1"] {
        assert!(pages.join(page).exists(), "{page}");
    }
    assert!(
        !pages.join("lockapi-watch.1").exists(),
        "it is for the program itself"
    );
    let mut command = program();
    command.args(["man", "nonsense"]);
    run(command).exits(2).tells("allowed are");
}

/// What the manual page says is what the documentation says.
#[test]
fn the_manual_has_all_statuses() {
    let page = include_str!("../src/documents/statuses.roff");
    let statuses = include_str!("../src/exit.rs");
    let rows = statuses
        .lines()
        .filter_map(|line| line.strip_prefix("/// | "));
    let rows = rows.filter_map(|row| row.split_once(" | ")?.0.parse::<u8>().ok());
    let mut count = 0;
    for status in rows {
        assert!(page.contains(&format!("\\fB{status}\\fR\n")), "{status}");
        count += 1;
    }
    assert_eq!(count, 13);
}
