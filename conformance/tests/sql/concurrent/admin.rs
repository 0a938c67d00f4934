//! Two sessions at the token of one mutex, or at the name of one lock.

use std::sync::Arc;

use lockapi::LockId;
use lockapi::mutex::LockMode;
use lockapi::suite::admin::Note;
use lockapi::suite::mutex::{Check, LockRequest};

use super::sides::{Place, Side, Step, number, sql, step};
use super::{Meets, Schedule};

/// Takes or releases a mark, as a session of the model.
fn mark(side: &mut Side, mark: i64, release: bool) {
    if let Place::Model(model) = &mut side.place {
        model.set_mark(side.session, mark);
    }
    side.perform(&[LockRequest {
        lock: LockId {
            key: mark,
            pair: false,
        },
        mode: LockMode::Exclusive,
        release,
        session: mark,
    }]);
}

/// Makes a session that has a mark.
pub(super) fn mark_session() -> Step {
    Arc::new(|side: &mut Side| {
        let key = fastrand::i64(1..);
        side.give("mark", key);
        side.beside(&format!("SELECT pg_advisory_lock({key})"), |side| {
            mark(side, key, false);
        });
        String::new()
    })
}

/// What remains of the check-in of a holder whose session has ended.
pub(super) fn check_in(key: &'static str) -> Step {
    Arc::new(move |side: &mut Side| {
        let (namespace, session) = (side.namespace.clone(), fastrand::i64(1..));
        side.script(&format!(
            "INSERT INTO lockapi.fence_mark (namespace, key, fence) VALUES ('{namespace}', '{key}', 5)"
        ));
        if let Place::Model(_) = side.place {
            mark(side, session, false);
            side.perform(&[Check {
                session,
                namespace,
                key: key.to_owned(),
                fence: 5,
            }]);
            mark(side, session, true);
        }
        String::new()
    })
}

/// Checks a holder of the mutex in, whose session is the one that is marked.
pub(super) fn check(fence: i64) -> Step {
    let batch = move |side: &Side| {
        vec![Check {
            session: side.given("mark"),
            namespace: side.namespace.clone(),
            key: "door".to_owned(),
            fence,
        }]
    };
    step(batch, |_, held| held.to_string())
}

#[test]
fn a_check_in_waits_for_that_of_another_holder() {
    for before in [
        &[&mark_session()] as &[&Step],
        &[&mark_session(), &check(2)],
    ] {
        for (first, second) in [(5, 4), (4, 5), (5, 5)] {
            let schedule = Schedule::new(before, &check(first), &check(second), Meets::Waits);
            schedule.then(&check(4)).then(&check(3)).run();
        }
    }
    let lock = sql("SELECT FROM lockapi.fence_mark WHERE namespace = $n FOR UPDATE");
    let before = [&mark_session(), &check(2)];
    let schedule = Schedule::new(&before, &lock, &check(1), Meets::Waits);
    schedule.then(&check(3)).run();
}

/// Notes names of locks.
pub(super) fn note(names: &'static [&'static str]) -> Step {
    let batch = |side: &Side| {
        let of = |name: &&str| {
            let name = (*name).to_owned();
            (lock_key(side, &name), name)
        };
        vec![Note {
            backend: side.session.cast_signed(),
            namespace: side.namespace.clone(),
            owner: "program".to_owned(),
            names: names.iter().map(of).collect(),
            ..Note::default()
        }]
    };
    step(batch, |_, rows| format!("{rows} noted"))
}

/// The keys of the names `1`, `2` and `3` are in this order.
pub(super) fn lock_key(side: &Side, name: &str) -> i64 {
    let base = lockapi::advisory_key(&side.namespace, "base") & !0xff;
    base | name.parse::<i64>().expect("a number")
}

#[test]
fn a_name_that_another_notes_is_waited_for() {
    let count = "SELECT count(*) FROM lockapi.lock_name WHERE namespace = $n";
    let schedule = Schedule::new(&[], &note(&["1"]), &note(&["2", "1"]), Meets::Waits);
    schedule
        .then(&number(count, 2))
        .then(&note(&["1", "2"]))
        .run();
}
