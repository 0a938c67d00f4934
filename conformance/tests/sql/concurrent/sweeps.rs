//! A sweep meets a session that uses what it would delete.

use lockapi::suite::admin::SweepNotes;
use lockapi::suite::lease;
use lockapi::suite::limit;
use lockapi::suite::mutex::SweepMarks;
use lockapi::suite::queue::SweepQueues;

use super::admin::{check_in, lock_key, note};
use super::leases::{acquire, peek, release};
use super::limits::{look, take};
use super::queue::claim_and_reject;
use super::queue_keys::{Key, push_key};
use super::sides::{Side, Step, elapse, own_url, sql, step};
use super::{Meets, Schedule};

/// A bit more than two days, and than a month, in minutes.
const TWO_DAYS: i64 = 2 * 1440 + 1;
const MONTH: i64 = 31 * 1440;

fn sweep_leases() -> Step {
    let batch = |side: &Side| {
        vec![lease::Sweep {
            after: (side.namespace.clone(), side.key(""), 0),
            most: 1,
        }]
    };
    step(batch, |_, swept| format!("{} swept", swept.deleted))
}

fn sweep_limits() -> Step {
    let batch = |side: &Side| {
        vec![limit::Sweep {
            after: (side.namespace.clone(), side.key("")),
            most: 1,
        }]
    };
    step(batch, |_, swept| format!("{} swept", swept.deleted))
}

fn sweep_queues() -> Step {
    let batch = |side: &Side| {
        vec![SweepQueues {
            namespace: side.namespace.clone(),
            most: 10,
        }]
    };
    step(batch, |_, swept| format!("{swept} swept"))
}

fn sweep_marks() -> Step {
    let batch = |side: &Side| {
        vec![SweepMarks {
            after: (side.namespace.clone(), String::new()),
            most: 1,
        }]
    };
    step(batch, |_, swept| format!("{} swept", swept.deleted))
}

fn sweep_names() -> Step {
    let batch = |side: &Side| {
        vec![SweepNotes {
            after: lock_key(side, "0"),
            most: 1,
        }]
    };
    step(batch, |_, swept| format!("{} swept", swept.deleted))
}

fn skipped(before: &[&Step], first: &Step, sweep: &Step) -> Schedule {
    Schedule::new(before, first, sweep, Meets::Skips("0 swept")).at(own_url())
}

#[test]
fn a_lease_that_somebody_has_locked_is_not_swept() {
    let before = [
        &acquire(&[("first", "a", 1)]),
        &release(&[("a", "first")]),
        &elapse(TWO_DAYS),
    ];
    let lock = sql("SELECT FROM lockapi.lease WHERE namespace = $n FOR UPDATE");
    let share = sql("SELECT FROM lockapi.lease WHERE namespace = $n FOR KEY SHARE");
    for first in [acquire(&[("second", "a", 2)]), sweep_leases(), lock, share] {
        let schedule = skipped(&before, &first, &sweep_leases());
        schedule.then(&peek(&["a"])).run();
    }
}

#[test]
fn a_limit_that_somebody_uses_is_not_swept() {
    let before = [&take(&["a"]), &elapse(60)];
    let lock = sql("SELECT FROM lockapi.rate_limit WHERE namespace = $n FOR UPDATE");
    for first in [take(&["a"]), sweep_limits(), lock] {
        skipped(&before, &first, &sweep_limits())
            .then(&look())
            .run();
    }
}

/// One after the other: a sweep deletes the keys of all namespaces.
#[test]
fn an_archived_job_or_a_key_that_somebody_has_locked_is_not_swept() {
    let before = [&push_key("a", Key::Skip), &claim_and_reject(), &elapse(60)];
    let lock = sql("SELECT FROM lockapi.job_archive WHERE namespace = $n FOR UPDATE");
    for first in [sweep_queues(), lock] {
        skipped(&before, &first, &sweep_queues()).run();
    }
    let before = [&push_key("a", Key::Idempotency), &elapse(TWO_DAYS)];
    let lock = sql("SELECT FROM lockapi.push_key WHERE namespace = $n FOR UPDATE");
    for first in [sweep_queues(), lock] {
        skipped(&before, &first, &sweep_queues()).run();
    }
}

#[test]
fn a_token_that_somebody_checks_in_is_not_swept() {
    let before = [&check_in(), &elapse(TWO_DAYS)];
    let lock = sql("SELECT FROM lockapi.fence_mark WHERE namespace = $n FOR UPDATE");
    for first in [sweep_marks(), lock] {
        skipped(&before, &first, &sweep_marks()).run();
    }
}

#[test]
fn a_name_that_somebody_notes_is_not_swept() {
    let before = [&note(&["1"]), &elapse(MONTH)];
    let lock = sql("SELECT FROM lockapi.lock_name WHERE namespace = $n FOR UPDATE");
    for first in [note(&["1"]), sweep_names(), lock] {
        skipped(&before, &first, &sweep_names()).run();
    }
}
