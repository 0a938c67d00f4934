//! A program that knows nothing of the library: it takes the same advisory locks, reads the views and holds
//! snapshots.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use postgres::error::SqlState;
use postgres::{Client, Config, IsolationLevel, NoTls, SimpleQueryMessage};

use super::limited::plain::{audits, beyond, changes};
use super::{KEYS, Phase, before, pick};
use crate::args::Control;
use crate::log::{Answer, Failed, Kind, Log, Op};

const VIEWS: [&str; 6] = [
    "lock_view",
    "wait_view",
    "lease_view",
    "running_view",
    "rate_limit_view",
    "task_view",
];

pub(super) fn run(url: &str, log: &Log, phase: &Arc<AtomicU8>, control: Option<Control>) {
    let mut threads = Vec::new();
    let mut works: Vec<Work> = vec![locks, locks, looks, snapshots, changes, audits];
    if control == Some(Control::Beyond) {
        works.push(beyond);
    }
    for work in works {
        let (url, log, phase) = (url.to_owned(), log.clone(), Arc::clone(phase));
        threads.push(thread::spawn(move || {
            while phase.load(Ordering::Relaxed) < Phase::Rest as u8 {
                // A connection that failed is replaced.
                if let Ok(mut client) = connect(&url) {
                    // What it holds is in the way of those whose turn it is.
                    let ending = || phase.load(Ordering::Relaxed) >= Phase::Rest as u8;
                    drop(work(&mut client, &log, &ending));
                }
                thread::sleep(Duration::from_millis(300));
            }
        }));
    }
    for thread in threads {
        thread.join().expect("no thread panics");
    }
}

fn connect(url: &str) -> Result<Client, postgres::Error> {
    let mut config: Config = url.parse()?;
    config.connect_timeout(Duration::from_secs(5));
    let mut client = config.connect(NoTls)?;
    client.batch_execute("SET synchronous_commit = on; SET statement_timeout = '8s'")?;
    Ok(client)
}

pub(super) type Ending<'a> = &'a dyn Fn() -> bool;

/// What a thread does until it is told to end, or fails.
type Work = fn(&mut Client, &Log, Ending<'_>) -> Result<(), postgres::Error>;

/// What a statement of a plain client says when it fails: nothing is known, unless the server refused it.
fn failed(error: &postgres::Error) -> Answer {
    let refused = error.as_db_error().is_some_and(|report| {
        report.parsed_severity() == Some(postgres::error::Severity::Error)
            && !report.code().code().starts_with("08")
    });
    let message = error.as_db_error().map_or_else(
        || error.to_string(),
        |report| format!("{} {}", report.message(), report.code().code()),
    );
    // Of the session itself; a server whose clock was set may find that it has passed too early.
    let timed_out = message.contains("statement timeout");
    let kind = match refused {
        true if timed_out => "TimedOut",
        true if message.ends_with("40P01") => "Deadlock",
        true => "Refused",
        false => "Unknown",
    };
    Answer::Failed {
        what: if refused {
            Failed::NotDone
        } else {
            Failed::Unknown
        },
        kind: kind.to_owned(),
        message,
    }
}

pub(super) fn ask<T>(
    log: &Log,
    op: Op,
    work: impl FnOnce() -> Result<T, postgres::Error>,
    told: impl FnOnce(&T) -> Answer,
) -> Result<(u64, T), postgres::Error> {
    let call = log.asked(op);
    let outcome = work();
    let answer = match &outcome {
        Ok(value) => told(value),
        Err(error) => failed(error),
    };
    log.answered(call, answer);
    outcome.map(|value| (call, value))
}

/// Locks, counts and unlocks in one session: while a statement of that succeeds, the session has the lock.
fn locks(client: &mut Client, log: &Log, ending: Ending<'_>) -> Result<(), postgres::Error> {
    while !ending() {
        let key = pick(&KEYS);
        let waits = fastrand::bool();
        let op = Op::Acquire {
            kind: Kind::Mutex,
            key: key.to_owned(),
            wait: if waits { 8000 } else { 0 },
            kept: true,
        };
        // Nobody knows it by a token.
        let told = |locked: &bool| {
            if *locked {
                Answer::Token(0)
            } else {
                Answer::Nothing
            }
        };
        let locking = || lock(client, key, waits);
        let (call, locked) = match ask(log, op, locking, told) {
            Err(error) if error.code() == Some(&SqlState::QUERY_CANCELED) => continue,
            outcome => outcome?,
        };
        if locked {
            for _ in 0..fastrand::u8(1..4) {
                let op = Op::Count {
                    counter: key.to_owned(),
                };
                let at = before();
                let pause = fastrand::f64() * 0.05;
                let sql = format!("SELECT torture.count('{key}', {pause})");
                let counting = || number(client, &sql);
                ask(log, op, counting, |count| Answer::Number(*count))?;
                log.held(at, call, 0);
            }
            let op = Op::Release {
                kind: Kind::Mutex,
                key: key.to_owned(),
                token: 0,
            };
            let sql = format!(
                "SELECT pg_advisory_unlock(lockapi.advisory_key('default', '{key}'))::int4"
            );
            ask(log, op, || number(client, &sql), |_| Answer::Done)?;
        }
        thread::sleep(Duration::from_millis(fastrand::u64(..200)));
    }
    Ok(())
}

fn lock(client: &mut Client, key: &str, waits: bool) -> Result<bool, postgres::Error> {
    let key = format!("lockapi.advisory_key('default', '{key}')");
    let sql = if waits {
        format!("SELECT 1 FROM pg_advisory_lock({key})")
    } else {
        format!("SELECT pg_try_advisory_lock({key})::int4")
    };
    Ok(number(client, &sql)? == 1)
}

/// The number that a statement answers, without anything being prepared.
pub(super) fn number(client: &mut Client, sql: &str) -> Result<i64, postgres::Error> {
    let rows = client.simple_query(sql)?;
    let number = rows.iter().find_map(|row| match row {
        SimpleQueryMessage::Row(row) => row.get(0)?.parse().ok(),
        _ => None,
    });
    Ok(number.unwrap_or(0))
}

/// Reads what operators read.
fn looks(client: &mut Client, log: &Log, ending: Ending<'_>) -> Result<(), postgres::Error> {
    while !ending() {
        let view = pick(&VIEWS);
        let sql = format!("SELECT count(*) FROM lockapi.{view}");
        ask(
            log,
            Op::Look,
            || number(client, &sql),
            |count| Answer::Number(*count),
        )?;
        thread::sleep(Duration::from_millis(fastrand::u64(..600)));
    }
    Ok(())
}

/// Keeps a snapshot for a while, as a report does.
fn snapshots(client: &mut Client, log: &Log, ending: Ending<'_>) -> Result<(), postgres::Error> {
    while !ending() {
        let looking = || {
            let mut transaction = client
                .build_transaction()
                .isolation_level(IsolationLevel::RepeatableRead)
                .start()?;
            for _ in 0..2 {
                transaction.simple_query("SELECT count(*) FROM lockapi.running_view")?;
                thread::sleep(Duration::from_millis(fastrand::u64(..1500)));
            }
            transaction.commit()
        };
        ask(log, Op::Look, looking, |()| Answer::Done)?;
        thread::sleep(Duration::from_millis(fastrand::u64(..3000)));
    }
    Ok(())
}
