//! Two sessions at one group.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lockapi::admin::JobEdit;
use lockapi::queue::Outcome;
use lockapi::suite::queue::{Admit, Push, SetGroups};

use super::queue::{
    ack, cancel, cancel_as_operator, claim, count, edit, edit_by, name, new_job, purge, settle,
    take,
};
use super::sides::{Plans, Side, Step, elapse, number, sql, step, url};
use super::{Meets, Schedule};

/// Pushes a job of the group `g` for each of the names.
fn push(names: &'static [&'static str]) -> Step {
    Arc::new(|side: &mut Side| {
        let mut job = new_job();
        "g".clone_into(&mut job.group);
        let push = Push {
            namespace: side.namespace.clone(),
            queue: "work".to_owned(),
            jobs: names.iter().map(|_| job.clone()).collect(),
            topic: None,
        };
        let ids = side.perform(&[push]).remove(0);
        for (name, id) in names.iter().zip(ids) {
            side.give(&format!("job {name}"), id);
        }
        String::new()
    })
}

fn admit() -> Step {
    let batch = |side: &Side| {
        vec![Admit {
            name: name(side),
            groups: 10,
        }]
    };
    step(batch, |_, admitted| format!("admitted {}", admitted.jobs))
}

fn set_groups(most: i64, ordered: bool) -> Step {
    let batch = move |side: &Side| {
        vec![SetGroups {
            name: name(side),
            most,
            ordered,
            topic: 0,
        }]
    };
    step(batch, |_, most| format!("{most}"))
}

fn nack() -> Outcome {
    Outcome::Nack {
        error: "it failed".to_owned(),
        after: std::time::Duration::ZERO,
    }
}

const NONE: Meets = Meets::Skips("admitted 0");
/// As a push that changes a job has it.
const LOCK_FIRST: &str =
    "SELECT FROM lockapi.job WHERE namespace = $n ORDER BY id LIMIT 1 FOR UPDATE";
/// No group has more admitted jobs than its limit, whatever the model says.
const ADMITTED: &str =
    "SELECT count(*) FROM lockapi.job WHERE namespace = $n AND group_key = 'g' AND due_at IS NULL";

/// The second waits, and sees what the first has admitted.
#[test]
fn one_admits_at_a_time() {
    for (most, ordered) in [(1, false), (2, false), (1, true)] {
        let before = [&set_groups(most, ordered), &push(&["a", "b", "c"])];
        let schedule = Schedule::new(&before, &admit(), &admit(), Meets::Waits);
        let schedule = schedule.then(&number(ADMITTED, most));
        schedule.then(&claim(5)).then(&admit()).run();
    }
}

/// Where it takes a snapshot before it waits, it sees an older state, and fails.
#[test]
fn stricter_isolation_admits_no_more() {
    let mut sides = [0, 1, 2].map(|session| {
        let mut side = Side::server(url(), Plans::Engine);
        side.session = session;
        side
    });
    let namespace = format!("n{:016x}", fastrand::u64(..));
    for side in &mut sides {
        side.namespace.clone_from(&namespace);
    }
    let [mut observer, mut first, mut second] = sides;
    let mut given = std::collections::BTreeMap::new();
    observer.run(&set_groups(1, false), &mut given);
    observer.run(&push(&["a", "b"]), &mut given);
    second.script("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM lockapi.queue LIMIT 1");
    first.run(&admit(), &mut given);
    let batch = [Admit {
        name: name(&second),
        groups: 10,
    }];
    let failure = second.attempt(&batch).expect_err("it sees an older state");
    assert_eq!(failure.sqlstate.as_deref(), Some("40001"));
    second.script("ROLLBACK");
    observer.run(&number(ADMITTED, 1), &mut given);
}

/// What is pushed, or ends, beside an admission is seen by the next one, and nobody waits.
#[test]
fn a_place_that_is_left_is_found_by_the_next_admission() {
    let before = [&push(&["a", "b"]), &admit(), &claim(1)];
    for first in [
        ack(&["a"]),
        settle(&["a"], Outcome::Ack),
        settle(&["a"], nack()),
        settle(&["a"], Outcome::Snooze(std::time::Duration::from_mins(5))),
        cancel(&["a"]),
        cancel_as_operator(),
    ] {
        let schedule = Schedule::new(&before, &first, &admit(), NONE);
        schedule.then(&count()).then(&claim(5)).run();
    }
    let before = [&push(&["a", "b"]), &admit()];
    let schedule = Schedule::new(&before, &take(1), &admit(), NONE);
    schedule.then(&claim(5)).run();
    let schedule = Schedule::new(&[], &push(&["a", "b"]), &admit(), NONE);
    schedule.then(&claim(5)).run();
}

/// A job that is admitted and put off is parked again.
#[test]
fn a_place_is_left_by_a_job_that_is_put_off() {
    let before = [&push(&["a", "b"]), &admit()];
    let schedule = Schedule::new(&before, &put_off(), &admit(), NONE);
    let schedule = schedule.then(&number(ADMITTED, 1));
    schedule.then(&admit()).then(&claim(5)).run();
    // One that is parked, while it is admitted.
    let parked = [&push(&["a"])];
    for edit in [put_off(), edit()] {
        let schedule = Schedule::new(&parked, &admit(), &edit, Meets::Skips("Locked"));
        schedule.then(&claim(5)).run();
        let schedule = Schedule::new(&parked, &edit, &admit(), NONE);
        schedule.then(&admit()).then(&claim(5)).run();
    }
}

/// Makes the job `a` due in a far future.
fn put_off() -> Step {
    let far = SystemTime::UNIX_EPOCH + Duration::from_hours(50_000_000);
    edit_by(JobEdit::new().at(far))
}

#[test]
fn nobody_waits_for_an_admission() {
    let before = [
        &push(&["a", "b"]),
        &admit(),
        &claim(1),
        &set_groups(2, false),
    ];
    for (second, meets) in [
        (push(&["c"]), Meets::Passes),
        (ack(&["a"]), Meets::Passes),
        (settle(&["a"], nack()), Meets::Passes),
        (cancel(&["a"]), Meets::Passes),
        (
            cancel(&["b"]),
            Meets::Skips("cancelled [] locked [\"job b\"]"),
        ),
        (claim(1), Meets::Skips("done [], picked 0:")),
        (purge(), Meets::Skips("purged 0")),
        (set_groups(3, false), Meets::Waits),
    ] {
        // An admission notes that it was, so whoever sets limits waits for it.
        let schedule = Schedule::new(&before, &admit(), &second, meets);
        schedule.then(&count()).run();
    }
}

#[test]
fn a_locked_job_holds_up_an_ordered_group() {
    let parked = [&set_groups(1, true), &push(&["a", "b"])];
    for first in [sql(LOCK_FIRST), cancel(&["a"])] {
        let schedule = Schedule::new(&parked, &first, &admit(), NONE);
        schedule.then(&claim(5)).run();
    }
    // Without an order another one is admitted.
    let parked = [&set_groups(1, false), &push(&["a", "b"])];
    let schedule = Schedule::new(&parked, &sql(LOCK_FIRST), &admit(), Meets::Passes);
    schedule.then(&number(ADMITTED, 1)).run();
    let schedule = Schedule::new(&parked, &cancel(&["a"]), &admit(), Meets::Passes);
    schedule.only_if_committed().then(&claim(5)).run();
}

/// The place belongs to the row, so it is kept while a lease has ended and nobody has noticed.
#[test]
fn an_expired_delivery_keeps_the_place() {
    let before = [&push(&["a", "b"]), &admit(), &claim(1), &elapse(2)];
    let schedule = Schedule::new(&before, &claim(1), &admit(), Meets::Passes);
    schedule.then(&number(ADMITTED, 1)).then(&claim(5)).run();
}
