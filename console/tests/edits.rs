//! What the commands change of jobs that wait.

mod common;

use common::{Database, run_with_input};

#[test]
fn a_job_that_waits_is_changed() {
    let database = Database::new();
    let pushed = database.lockapi(["queue", "push", "mails", "digest", "1", "--delay", "1h"]);
    let id = pushed.succeeds().out.trim().to_owned();
    let edit = |arguments: &[&str]| {
        let begin = ["queue", "edit", "mails", &*id];
        database.lockapi([&begin, arguments].concat())
    };
    edit(&["--at", "2100-03-01T00:00:00Z", "--reason", "too early"]).succeeds();
    let shown = database.lockapi(["queue", "job", &id]).succeeds();
    shown.shows("delayed").shows("2100-03-01");
    let payload = r#"{"to":"ada"}"#;
    edit(&[
        "--now",
        "--priority",
        "urgent",
        "--max-attempts",
        "3",
        "--payload",
        payload,
        "--reason",
        "a mistake",
    ])
    .succeeds();
    let shown = database
        .lockapi(["queue", "job", &id, "--json"])
        .succeeds()
        .json();
    assert_eq!(shown["state"], "ready", "{shown}");
    assert_eq!(shown["priority"], "urgent", "{shown}");
    assert_eq!(shown["max_attempts"], 3, "{shown}");
    assert_eq!(shown["payload"]["to"], "ada", "{shown}");
    let mut piped = database.command();
    piped.args(["queue", "edit", "mails", &id, "--payload", "-"]);
    piped.args(["--reason", "piped"]);
    run_with_input(piped, Some("-7")).succeeds();
    database
        .lockapi(["queue", "job", &id])
        .succeeds()
        .shows("-7");
    let audit = database.lockapi(["audit"]).succeeds();
    audit
        .shows("edit job")
        .shows("due now, priority urgent, 3 attempts, a payload of 12 bytes")
        .shows("too early");
}

#[test]
fn an_edit_says_what_is_wrong() {
    let database = Database::new();
    let pushed = database.lockapi(["queue", "push", "mails", "digest"]);
    let id = pushed.succeeds().out.trim().to_owned();
    for (arguments, status, told) in [
        (&["--reason", "why"][..], 2, "--now"),
        (&["--now"], 2, "--reason"),
        (
            &["--now", "--at", "2100-03-01T00:00:00Z", "--reason", "why"],
            2,
            "--at",
        ),
        (&["--at", "tomorrow", "--reason", "why"], 2, "--at"),
        (
            &["--max-attempts", "0", "--reason", "why"],
            2,
            "allowed are 1 to 1,000,000",
        ),
        (&["--payload", "{", "--reason", "why"], 2, "not JSON"),
    ] {
        let begin = ["queue", "edit", "mails", &*id];
        let answer = database.lockapi([&begin, arguments].concat());
        answer.exits(status).tells(told);
    }
    for (queue, id) in [("other", &*id), ("mails", "999999999")] {
        database
            .lockapi(["queue", "edit", queue, id, "--now", "--reason", "why"])
            .exits(5)
            .tells("no job");
    }
    database
        .lockapi(["queue", "cancel", "mails", &id, "--reason", "a mistake"])
        .succeeds();
    database
        .lockapi(["queue", "edit", "mails", &id, "--now", "--reason", "late"])
        .exits(5)
        .tells("It may run, have ended");
}
