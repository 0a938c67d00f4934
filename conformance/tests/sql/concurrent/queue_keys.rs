//! Two sessions that push a job with one key.

use std::collections::BTreeMap;
use std::sync::Arc;

use lockapi::queue::Unique;
use lockapi::suite::driver::Operation;
use lockapi::suite::queue::{HoldKey, Keys, PushKeyed, Redrive};
use postgres::error::SqlState;

use super::queue::{cancel, count, name, new_job, take};
use super::sides::{Place, Plans, Side, Step, UNIT, elapse, number, url};
use super::{Meets, Running, Schedule};

/// The key of a push.
#[derive(Clone, Copy, Debug)]
pub(super) enum Key {
    Skip,
    Replace,
    Keep,
    Idempotency,
}

/// Pushes a job with the key `it`, and calls it by this name.
pub(super) fn push_key(job: &'static str, key: Key) -> Step {
    push_keys(job, key, &["it"])
}

fn push_batch(side: &Side, key: Key, keys: &[&str]) -> Vec<PushKeyed> {
    let of = |text: &&str| {
        let text = (*text).to_owned();
        let (unique_key, idempotency_key) = match key {
            Key::Idempotency => (String::new(), text),
            _ => (text, String::new()),
        };
        PushKeyed {
            namespace: side.namespace.clone(),
            queue: "work".to_owned(),
            job: new_job(),
            keys: Keys {
                unique_key,
                unique: match key {
                    Key::Replace => Unique::Replace,
                    Key::Keep => Unique::Keep,
                    _ => Unique::Skip,
                },
                idempotency_key,
            },
            topic: None,
        }
    };
    keys.iter().map(of).collect()
}

/// Pushes a job for each of the keys; the first is called by this name.
pub(super) fn push_keys(job: &'static str, key: Key, keys: &'static [&'static str]) -> Step {
    Arc::new(move |side: &mut Side| {
        let batch = push_batch(side, key, keys);
        let answers = side.perform(&batch);
        let mut words = Vec::new();
        for (key, pushed) in keys.iter().zip(answers) {
            let called = if *key == "it" { job } else { key };
            words.push(match pushed {
                None => "None".to_owned(),
                Some(pushed) => {
                    let known = side.name_of("job", pushed.id);
                    if known.starts_with("unknown") {
                        side.give(&format!("job {called}"), pushed.id);
                        format!("{:?}", pushed.how)
                    } else {
                        format!("{:?} {known}", pushed.how)
                    }
                }
            });
        }
        words.join("; ")
    })
}

/// The same by a function that any program can call: it waits itself, and does not tell how.
fn push_in_sql(job: &'static str, function: &'static str, key: Key) -> Step {
    Arc::new(move |side: &mut Side| {
        let id = if let Place::Server(session) = &mut side.place {
            let kind = match key {
                Key::Idempotency => "idempotency_key",
                _ => "unique_key",
            };
            let push = format!(
                "SELECT lockapi.{function}(queue => 'work', name => '{job}', payload => '1', {kind} => 'it', namespace => '{}'{})",
                side.namespace,
                if function == "push" {
                    ""
                } else {
                    ", headers => NULL"
                },
            );
            session.query_one(&push, &[]).expect(&push).get(0)
        } else {
            let batch = push_batch(side, key, &["it"]);
            side.perform(&batch)[0].as_ref().expect("pushed").id
        };
        let known = side.name_of("job", id);
        if known.starts_with("unknown") {
            side.give(&format!("job {job}"), id);
            return "new".to_owned();
        }
        known
    })
}

const FUNCTIONS: [&str; 2] = ["push", "push_with_headers"];

#[test]
fn a_push_in_sql_waits_for_another_with_the_same_new_key() {
    for function in FUNCTIONS {
        for key in [Key::Skip, Key::Idempotency] {
            let ours = push_in_sql("a", function, key);
            for first in [push_key("a", key), Step::clone(&ours)] {
                let second = push_in_sql("b", function, key);
                let schedule = Schedule::new(&[], &first, &second, Meets::Waits);
                schedule.then(&count()).run();
            }
            // Another key is none of this one's business.
            let before = [&push_keys("a", key, &["other", "it"])];
            let schedule = Schedule::new(&before, &push_key("b", key), &ours, Meets::Passes);
            schedule.then(&count()).run();
        }
    }
}

/// Headers that are as they should be hide nothing else that is wrong.
#[test]
fn a_push_in_sql_with_headers_is_refused_for_what_else_is_wrong() {
    let mut side = Side::server(url(), Plans::Engine);
    let Place::Server(session) = &mut side.place else {
        panic!("the functions are those of the server");
    };
    for wrong in [
        "max_attempts => 0",
        "priority => 'none'",
        "unique_key => ''",
    ] {
        let push = format!(
            "SELECT lockapi.push_with_headers(queue => 'work', name => 'job', payload => '1', headers => '{{\"a\": \"b\"}}', {wrong})"
        );
        let refused = session.query_one(&push, &[]).expect_err(&push);
        assert_eq!(
            refused.code(),
            Some(&SqlState::INVALID_PARAMETER_VALUE),
            "{wrong}"
        );
    }
}

/// Jobs with this name.
const SECOND: &str = "SELECT count(*) FROM lockapi.job WHERE namespace = $n AND name = 'b'";

/// Whoever comes second finds what the first has made of it.
#[test]
fn pushes_in_sql_that_replace_an_expired_job_do_so_one_after_the_other() {
    let mut job = new_job();
    job.ttl = UNIT;
    let expired = Arc::new(move |side: &mut Side| {
        let mut batch = push_batch(side, Key::Skip, &["it"]);
        batch[0].job = job.clone();
        let pushed = side.perform(&batch).remove(0).expect("pushed");
        side.give("job a", pushed.id);
        String::new()
    }) as Step;
    for function in FUNCTIONS {
        let before = [&expired, &elapse(2)];
        let second = push_in_sql("b", function, Key::Skip);
        for first in [
            push_key("c", Key::Skip),
            push_in_sql("c", function, Key::Skip),
        ] {
            let schedule = Schedule::new(&before, &first, &second, Meets::Waits);
            let schedule = schedule.only_if_committed().then(&count());
            schedule.then(&number(SECOND, 0)).run();
        }
        let schedule = Schedule::new(&before, &cancel(&["a"]), &second, Meets::Waits);
        let schedule = schedule.only_if_committed().then(&count());
        schedule.then(&number(SECOND, 1)).run();
    }
}

#[test]
fn a_push_waits_for_another_with_the_same_new_key() {
    for key in [Key::Skip, Key::Replace, Key::Keep, Key::Idempotency] {
        let (first, second) = (push_key("a", key), push_key("b", key));
        let schedule = Schedule::new(&[], &first, &second, Meets::WaitsAndRetries("None"));
        schedule.then(&count()).run();
    }
}

#[test]
fn a_push_passes_one_that_changes_nothing() {
    for key in [Key::Skip, Key::Idempotency] {
        let before = [&push_key("a", key)];
        let (first, second) = (push_key("b", key), push_key("c", key));
        let schedule = Schedule::new(&before, &first, &second, Meets::Passes);
        schedule.then(&count()).run();
    }
}

#[test]
fn a_push_that_changes_a_job_is_retried_while_another_changes_it() {
    for first in [Key::Replace, Key::Keep] {
        for second in [Key::Replace, Key::Keep] {
            let before = [&push_key("a", Key::Skip)];
            let (first, second) = (push_key("b", first), push_key("c", second));
            let schedule = Schedule::new(&before, &first, &second, Meets::Skips("None"));
            schedule.then(&count()).run();
        }
    }
}

/// Locks the job of the key `it`.
fn hold() -> Step {
    Arc::new(|side: &mut Side| {
        let (name, key) = (name(side), "it".to_owned());
        format!("{:?}", side.perform(&[HoldKey { name, key }]))
    })
}

#[test]
fn a_hold_of_a_key_waits_for_whoever_changes_its_job() {
    for key in [Key::Replace, Key::Keep] {
        let before = [&push_key("a", Key::Skip)];
        let (first, second) = (push_key("b", key), hold());
        let schedule = Schedule::new(&before, &first, &second, Meets::Waits);
        schedule.then(&count()).run();
    }
    let before = [&push_key("a", Key::Skip)];
    let schedule = Schedule::new(&before, &take(1), &hold(), Meets::Waits);
    schedule.then(&count()).run();
}

#[test]
fn a_hold_of_a_key_waits_for_another() {
    let before = [&push_key("a", Key::Skip)];
    let schedule = Schedule::new(&before, &hold(), &hold(), Meets::Waits);
    schedule.then(&count()).run();
}

/// Puts all dead letters back, or tells the code of the error.
fn redrive() -> Step {
    Arc::new(|side: &mut Side| {
        let redrive = Redrive {
            name: name(side),
            ids: Vec::new(),
            after: 0,
            most: 10,
            topic: 0,
        };
        match side.attempt(&[redrive]) {
            Ok(answers) => format!("{answers:?}"),
            Err(failure) if format!("{failure:?}").contains("23505") => "a twin".to_owned(),
            Err(failure) => panic!("{}: {failure:?}", Redrive::STATEMENT.name),
        }
    })
}

#[test]
fn a_dead_letter_stays_where_it_is_when_its_key_is_pushed_meanwhile() {
    let before = [&push_key("a", Key::Skip), &super::queue::claim_and_reject()];
    let first = push_key("b", Key::Skip);
    let schedule = Schedule::new(
        &before,
        &first,
        &redrive(),
        Meets::WaitsAndRetries("a twin"),
    );
    schedule.then(&count()).run();
    // The other way round the key is that of the letter.
    let schedule = Schedule::new(&before, &redrive(), &first, Meets::WaitsAndRetries("None"));
    schedule.then(&count()).run();
}

/// A push is held up by another key of its batch, while a third one takes the place of a job that has expired.
#[test]
fn a_job_that_took_the_place_of_an_expired_one_stays() {
    let namespace = format!("n{:016x}", fastrand::u64(..));
    let side = || {
        let mut side = Side::server(url(), Plans::Engine);
        side.namespace.clone_from(&namespace);
        side
    };
    let (mut observer, mut first, second) = (side(), side(), side());
    let mut given = BTreeMap::new();
    observer.run(&push_key("a", Key::Skip), &mut given);
    observer.script(&format!(
        "UPDATE lockapi.job SET expires_at = pg_catalog.clock_timestamp() - interval '1 minute'
          WHERE namespace = '{namespace}'"
    ));
    let held_up = push_keys("held", Key::Idempotency, &["held"]);
    first.script("BEGIN");
    first.run(&held_up, &mut given);
    let both: Step = Arc::new(|side: &mut Side| {
        let keys = [Key::Idempotency, Key::Skip];
        let mut batch = push_batch(side, keys[0], &["held"]);
        batch.extend(push_batch(side, keys[1], &["it"]));
        format!("{:?}", side.perform(&batch)[1].map(|pushed| pushed.how))
    });
    let second = Running::start(second, &both, given.clone());
    second.waits_for(first.pid(), &mut observer);
    let third = observer.run(&push_key("b", Key::Skip), &mut given);
    first.script("COMMIT");
    let (_, answer) = second.answer(&mut given);
    assert_eq!((&*third, &*answer), ("Changed job a", "None"));
}
