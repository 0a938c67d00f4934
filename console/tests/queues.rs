//! What the commands tell of queues.

mod common;

use common::Database;

fn push(database: &Database, queue: &str, name: &str) {
    database.lockapi(["queue", "push", queue, name]).succeeds();
}

#[test]
fn who_writes_the_name_of_a_queue_wrong_is_told() {
    let database = Database::new();
    push(&database, "mails", "send");
    let why = ["--reason", "a test"];
    for arguments in [
        &["show", "mail"][..],
        &["jobs", "mail"],
        &["dead", "mail"],
        &["purge", "mail"],
        &["drain", "mail2", "--timeout", "1s"],
        &["pause", "mail3"],
    ] {
        let acts = !["show", "jobs", "dead"].contains(&arguments[0]);
        let why = if acts { &why[..] } else { &[] };
        let told = database.lockapi([&["queue"], arguments, why].concat());
        told.succeeds().tells("`lockapi queue list` lists");
    }
    // There is nothing that could have been paused or limited.
    for arguments in [
        &["resume", "mail4"][..],
        &["resume", "mail4", "--name", "send"],
        &["limit", "mail4", "--clear"],
    ] {
        let told = database.lockapi([&["queue"], arguments, &why].concat());
        told.exits(5).tells("`lockapi queue list` lists");
    }
    for arguments in [
        &["show", "mails"][..],
        &["jobs", "mails"],
        &["dead", "mails"],
        &["show", "mail3"],
    ] {
        let quiet = database.lockapi([&["queue"], arguments].concat());
        assert_eq!(quiet.succeeds().err, "", "{arguments:?}");
    }
    let elsewhere = database.lockapi(["queue", "list", "--namespace", "prod"]);
    elsewhere.succeeds().tells("--everywhere");
}

/// A pause or a limit may be there before the first job, and is known then.
#[test]
fn a_queue_is_limited_and_paused_before_its_first_job() {
    let database = Database::new();
    let why = ["--reason", "a test"];
    let queue = |arguments: &[&str]| database.lockapi([&["queue"], arguments, &why].concat());
    for arguments in [
        &["limit", "images", "--running", "3"][..],
        &["limit", "videos", "--group", "a", "--running", "3"],
    ] {
        queue(arguments).succeeds().tells("has no jobs yet");
    }
    queue(&["pause", "texts", "--name", "index"]).succeeds();
    for arguments in [
        &["limit", "images", "--running", "4"][..],
        &["limit", "images", "--clear"],
        &["resume", "texts", "--name", "index"],
    ] {
        assert_eq!(queue(arguments).succeeds().err, "", "{arguments:?}");
    }
    // Limits of groups cannot be looked for.
    queue(&["limit", "videos", "--group", "a", "--clear"]).succeeds();
    push(&database, "mails", "send");
    let limited = queue(&["limit", "mails", "--running", "3"]);
    assert_eq!(limited.succeeds().err, "");
}

#[test]
fn queues_are_listed_with_what_is_in_them() {
    let database = Database::new();
    push(&database, "mails", "send");
    push(&database, "mails", "send");
    database
        .lockapi(["queue", "pause", "images", "--reason", "a test"])
        .succeeds();
    let listed = database.lockapi(["queue", "list", "--counts"]).succeeds();
    listed.shows("READY").shows("paused");
    let listed = database.lockapi(["queue", "list", "--counts", "--json"]);
    let listed = listed.succeeds().json();
    assert_eq!(listed[0]["name"], "images", "{listed}");
    assert_eq!(listed[0]["paused"], true, "{listed}");
    assert_eq!(listed[1]["ready"]["count"], 2, "{listed}");
    database
        .lockapi(["queue", "list", "--counts", "--everywhere"])
        .exits(2);
}

#[test]
fn names_that_are_paused_are_shown_with_their_queue() {
    let database = Database::new();
    push(&database, "mails", "send");
    let pause = |name: &str, time: &[&str]| {
        let begin = ["queue", "pause", "mails", "--name", name];
        let arguments = [&begin[..], time, &["--reason", "a test"]].concat();
        database.lockapi(arguments).succeeds()
    };
    pause("digest", &["--for", "2h"]);
    pause("send", &[]);
    let shown = database.lockapi(["queue", "show", "mails"]).succeeds();
    shown
        .shows("paused jobs digest for 1h 59m")
        .shows("paused jobs send:");
    let shown = database.lockapi(["queue", "show", "mails", "--json"]);
    let shown = shown.succeeds().json();
    assert_eq!(shown["paused_names"][1]["name"], "send", "{shown}");
    assert_eq!(shown["paused"], false, "{shown}");
}

/// A call that fails in the middle tells how far it came.
#[test]
fn what_was_cancelled_before_a_failure_is_told() {
    let database = Database::new();
    database.sql(
        "SELECT count(lockapi.push('mails', 'send')) FROM generate_series(1, 2500);
         SELECT lockapi.push('mails', 'stuck');
         CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql
             AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
         CREATE TRIGGER refuse BEFORE DELETE ON lockapi.job FOR EACH ROW WHEN (OLD.name = 'stuck')
             EXECUTE FUNCTION public.refuse()",
    );
    let cancel = ["queue", "cancel", "mails", "--all", "--reason", "a mistake"];
    database
        .lockapi(cancel)
        .exits(1)
        .tells("2000 jobs were changed before");
    assert_eq!(database.sql("SELECT count(*) FROM lockapi.job"), "501");
    // The others go without it, and a failure of the first part is told as it is.
    let first = database.lockapi([&cancel[..], &["--name", "stuck"]].concat());
    assert!(!first.exits(1).err.contains("changed before"));
    database.sql("DROP TRIGGER refuse ON lockapi.job");
    database.lockapi(cancel).succeeds().shows("501 cancelled");
}

#[test]
fn all_jobs_that_match_are_cancelled() {
    let database = Database::new();
    for name in ["send", "send", "resize"] {
        push(&database, "mails", name);
    }
    database.sql(
        "SELECT lockapi.push_with_headers('mails', 'send', '1', '{\"tags\": \"billing,eu\"}')",
    );
    let cancel = |arguments: &[&str]| {
        let why = ["--reason", "a mistake"];
        database.lockapi([&["queue", "cancel", "mails"], arguments, &why].concat())
    };
    let jobs = |arguments: &[&str]| {
        let listed = database.lockapi([&["queue", "jobs", "mails", "--json"], arguments].concat());
        let listed = listed.succeeds().json();
        listed["jobs"].as_array().expect("a list").len()
    };
    // As an unset variable of a script leaves it: that must not mean all.
    for label in ["--name", "--group", "--tag"] {
        cancel(&["--all", label, ""]).exits(2);
        database
            .lockapi(["queue", "jobs", "mails", label, ""])
            .exits(2);
    }
    for wrong in [&[][..], &["--tag", "eu"], &["17", "--all"]] {
        cancel(wrong).exits(2);
    }
    assert_eq!(jobs(&["--tag", "eu"]), 1);
    assert_eq!(jobs(&[]), 4);
    cancel(&["--all", "--tag", "billing"])
        .succeeds()
        .shows("1 cancelled");
    cancel(&["--all", "--name", "send"])
        .succeeds()
        .shows("2 cancelled");
    assert_eq!(jobs(&[]), 1);
    cancel(&["--all", "--state", "failed"])
        .exits(2)
        .tells("allowed");
    let told = cancel(&["--all", "--json"]).succeeds().json();
    assert_eq!(told["cancelled"], 1);
    assert_eq!(jobs(&[]), 0);
}

#[test]
fn history_is_shown_by_the_minute_and_by_the_hour() {
    let database = Database::new();
    push(&database, "mails", "send");
    let history = |arguments: &[&str]| {
        let begin = ["queue", "history", "mails"];
        database.lockapi([&begin[..], arguments].concat())
    };
    let empty = history(&["--json"]).succeeds().json();
    assert_eq!(empty, serde_json::json!([]));
    database.sql(
        "INSERT INTO lockapi.job_history (at, completed, failed, dead, waited, ran, hourly, waits, runs, namespace, queue, name)
         SELECT date_trunc(o.step, now(), 'UTC') - o.many * ('1 ' || o.step)::interval, 7, 2, 1, 9000000, 18000000, o.step = 'hour',
                '{0,9}', '{0,0,9}', 'default', 'mails', o.name
           FROM (VALUES ('minute', 3, 'send'), ('minute', 3, 'digest'), ('hour', 30, 'send')) AS o (step, many, name)",
    );
    let minutes = history(&["--json"]).succeeds().json();
    assert_eq!(minutes[0]["completed"], 14, "{minutes}");
    assert_eq!(minutes[0]["run_mean"], 2.0, "{minutes}");
    assert_eq!(minutes.as_array().expect("a list").len(), 1);
    let send = history(&["--name", "send", "--json"]).succeeds().json();
    assert_eq!(send[0]["completed"], 7, "{send}");
    assert_eq!(send[0]["wait_p95"], 0.00195, "{send}");
    let hours = history(&["--by", "hour", "--json"]).succeeds().json();
    assert_eq!(
        (&hours[0]["failed"], &hours[0]["dead"]),
        (&2.into(), &1.into())
    );
    history(&["--by", "hour"])
        .succeeds()
        .shows("WAIT P95")
        .shows("1ms");
    history(&["--by", "week"]).exits(2);
    history(&["--name", ""]).exits(2);
}
