//! What is answered to have been done before, where a standby does not have it yet.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use lockapi::admin::JobEdit;
use lockapi::driver::{Connection as _, Inline};
use lockapi::suite::admin::{CancelJobs, EditJobs, ForceRelease};
use lockapi::suite::driver::Operation;
use lockapi::suite::idempotency::RecallAnswer;
use lockapi::suite::queue::{Cancel, Discard, Name, Purge, Redrive, SetGroupLimit};
use lockapi::suite::schedule::{self, RemoveTask, SwitchTask, TaskName};
use lockapi_conformance::cluster::Cluster;
use lockapi_postgres::Borrowed;
use postgres::{Client, NoTls};

type Act = Box<dyn FnOnce(&mut Client) + Send>;

fn act<O: Operation + Send + 'static>(one: O) -> Act {
    Box::new(move |client| {
        // It ends with its session.
        let _ended = pollster::block_on(Inline(Borrowed(client)).perform(&[one]));
    })
}

fn script(text: &'static str) -> Act {
    Box::new(move |client| {
        let _ended = client.batch_execute(text);
    })
}

fn name() -> Name {
    Name {
        namespace: "acknowledged".to_owned(),
        queue: "work".to_owned(),
    }
}

fn task(task: &str) -> TaskName {
    TaskName {
        of: schedule::Name {
            namespace: "acknowledged".to_owned(),
            scheduler: "calendar".to_owned(),
        },
        task: task.to_owned(),
    }
}

fn acts() -> Vec<(&'static str, Act)> {
    vec![
        (
            "an answer",
            act(RecallAnswer {
                namespace: "acknowledged".to_owned(),
                key: "pay".to_owned(),
            }),
        ),
        (
            "a push of an idempotency key",
            script(
                "SELECT lockapi.push(namespace => 'acknowledged', queue => 'work', name => 'job', idempotency_key => 'once')",
            ),
        ),
        (
            "a push of a unique key",
            script(
                "SELECT lockapi.push(namespace => 'acknowledged', queue => 'work', name => 'job', unique_key => 'one', notify => false)",
            ),
        ),
        (
            "a task that is disabled already",
            act(SwitchTask {
                name: task("report"),
                enabled: false,
                next: None,
                version: 0,
                topic: 1,
            }),
        ),
        (
            "a task that is not there",
            act(RemoveTask {
                task: task("gone"),
                again: false,
            }),
        ),
        (
            "a group without a limit of its own",
            act(SetGroupLimit {
                name: name(),
                group: "customer".to_owned(),
                limit: None,
                topic: 1,
            }),
        ),
        (
            "a job that is not there",
            act(Cancel {
                name: name(),
                ids: vec![77],
                keep: 0,
            }),
        ),
        (
            "no dead letters to put back",
            act(Redrive {
                name: name(),
                ids: Vec::new(),
                after: 0,
                most: 10,
                topic: 1,
            }),
        ),
        (
            "no dead letters to discard",
            act(Discard {
                name: name(),
                ids: Vec::new(),
                after: 0,
                most: 10,
            }),
        ),
        (
            "no jobs to delete",
            act(Purge {
                name: Name {
                    queue: "idle".to_owned(),
                    ..name()
                },
                after: Purge::FIRST,
                most: 10,
            }),
        ),
    ]
}

fn acts_of_operators() -> Vec<(&'static str, Act)> {
    vec![
        (
            "a job that is not there, by an operator",
            act(CancelJobs {
                name: name(),
                ids: vec![77],
                only: None,
                running: true,
                reason: "again".to_owned(),
            }),
        ),
        (
            "an edit of a job that is not there",
            act(EditJobs {
                name: name(),
                ids: vec![77],
                only: None,
                edit: JobEdit::new().now(),
                again: false,
                topic: 1,
                reason: "again".to_owned(),
            }),
        ),
        (
            "a lease that nobody has",
            act(ForceRelease {
                namespace: "acknowledged".to_owned(),
                key: "job".to_owned(),
                reason: "again".to_owned(),
            }),
        ),
    ]
}

/// Who did it before may have been told nothing, because its commit waits for a standby.
#[test]
fn f11_what_was_done_before_is_not_answered_before_a_standby_has_it() {
    let server = Cluster::private(&[]).expect("a server");
    let run = |text: &str| server.psql(text).expect("answered");
    for one in lockapi::MIGRATIONS {
        run(&format!("BEGIN; {}; COMMIT", one.sql));
    }
    run("INSERT INTO lockapi.answer
         VALUES ('acknowledged', 'pay', 1, 'request', 'paid', now(), now() + interval '1 hour');
         INSERT INTO lockapi.task (enabled, version, next_at, every, timeout, misfire, misfire_most, overlap, max_attempts,
                                   priority, namespace, scheduler, name, job, payload)
         VALUES (false, 0, now(), 3600000000, 3600000000, 0, 0, 0, 3, 2, 'acknowledged', 'calendar', 'report', 'report', '0');
         SELECT lockapi.push(namespace => 'acknowledged', queue => 'work', name => 'job', idempotency_key => 'once'),
                lockapi.push(namespace => 'acknowledged', queue => 'work', name => 'job', unique_key => 'one')");
    run("ALTER SYSTEM SET synchronous_standby_names = 'ghost'");
    run("SELECT pg_reload_conf()");
    let mut early = Vec::new();
    for (what, act) in acts().into_iter().chain(acts_of_operators()) {
        let (sender, done) = mpsc::channel();
        let mut client = Client::connect(server.url(), NoTls).expect("a connection");
        let shown = client.query_one("SHOW synchronous_standby_names", &[]);
        assert_eq!(shown.expect("shown").get::<_, String>(0), "ghost");
        let pid = client.query_one("SELECT pg_backend_pid()", &[]);
        let pid: i32 = pid.expect("answered").get(0);
        let acting = thread::spawn(move || {
            act(&mut client);
            sender.send(()).expect("heard");
        });
        let waits = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'SyncRep'"
        );
        let began = Instant::now();
        loop {
            if run(&waits).trim() == "1" {
                run(&format!("SELECT pg_terminate_backend({pid})"));
                break;
            }
            if done.recv_timeout(Duration::from_millis(50)).is_ok() {
                early.push(what);
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        }
        acting.join().expect("ended");
    }
    assert!(early.is_empty(), "answered at once: {early:?}");
}
