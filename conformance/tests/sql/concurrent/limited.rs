//! Two sessions at the limit of one queue.

use lockapi::suite::queue::{LimitRow, ReadQueueLimit, SetQueueLimit};

use super::queue::{ack, claim, claim_again, count, name, push};
use super::sides::{Plans, Side, Step, elapse, sql, step};
use super::{Meets, Schedule, agree};

const DAY: i64 = 24 * 3600 * 1_000_000_000;

/// What a claim answers while another has the limit.
const NONE: Meets = Meets::Skips("done [], picked 0:");

/// Limits how many run.
pub(super) fn limit(running: i64) -> Step {
    let batch = move |side: &Side| {
        let row = LimitRow {
            running: Some(running),
            ..LimitRow::default()
        };
        vec![SetQueueLimit {
            name: name(side),
            limit: Some(row),
            topics: Vec::new(),
        }]
    };
    step(batch, |_, ()| "limited".to_owned())
}

/// Limits how many are claimed in a day, after three at once, and how many run.
fn rate(running: Option<i64>) -> Step {
    let batch = move |side: &Side| {
        let row = LimitRow {
            running,
            permits: Some(1),
            period: Some(DAY),
            burst: Some(3),
            step: Some(DAY),
        };
        vec![SetQueueLimit {
            name: name(side),
            limit: Some(row),
            topics: Vec::new(),
        }]
    };
    step(batch, |_, ()| "limited".to_owned())
}

pub(super) fn unlimit() -> Step {
    let batch = |side: &Side| {
        vec![SetQueueLimit {
            name: name(side),
            limit: None,
            topics: Vec::new(),
        }]
    };
    step(batch, |_, ()| "not limited".to_owned())
}

/// The limit, and how many places of it are taken.
fn read() -> Step {
    let batch = |side: &Side| vec![ReadQueueLimit { name: name(side) }];
    step(batch, |_, limit| format!("{limit:?}"))
}

/// What was counted while it was limited how many run is no matter then.
#[test]
fn where_only_the_rate_is_limited_no_places_are_taken() {
    let (push, one, none) = (push(&["a", "b"]), claim(1), rate(None));
    let steps = [
        &push,
        &limit(2),
        &one,
        &read(),
        &none,
        &read(),
        &one,
        &read(),
    ];
    agree(Plans::Engine, &steps);
}

#[test]
fn claim_is_in_vain_while_another_has_the_limit() {
    for most in [1, 2] {
        let before = [&push(&["a", "b", "c", "d"]), &limit(3)];
        let schedule = Schedule::new(&before, &claim(most), &claim(4), NONE);
        schedule.then(&count()).then(&claim(4)).run();
    }
}

#[test]
fn setting_waits_for_a_claim_and_claims_wait_for_no_setting() {
    let before = [&push(&["a", "b", "c", "d"]), &limit(3)];
    for set in [limit(1), limit(4), unlimit()] {
        let schedule = Schedule::new(&before, &claim(2), &set, Meets::Waits);
        schedule.then(&claim(4)).then(&count()).run();
        let schedule = Schedule::new(&before, &set, &claim(4), NONE);
        schedule.then(&claim(4)).then(&count()).run();
        let schedule = Schedule::new(&before, &set, &limit(2), Meets::Waits);
        schedule.then(&claim(4)).then(&count()).run();
    }
}

#[test]
fn job_that_is_being_completed_has_its_place_also_when_its_lease_has_ended() {
    let (a, b) = (push(&["a"]), push(&["b"]));
    for ended in [false, true] {
        let passes = elapse(if ended { 2 } else { 0 });
        let before = [&a, &b, &limit(1), &claim(1), &passes];
        let schedule = Schedule::new(&before, &ack(&["a"]), &claim(1), NONE);
        schedule.then(&claim(1)).then(&count()).run();
    }
}

#[test]
fn lost_claim_is_found_again_and_takes_no_permit() {
    let jobs = push(&["a", "b", "c", "d"]);
    for running in [None, Some(2), Some(4)] {
        for most in [1, 3] {
            let (limit, claim, again) = (rate(running), claim(most), claim_again(4));
            let (rest, count, later, ended) =
                (super::queue::claim(4), count(), elapse(2), claim_again(4));
            let steps = [
                &jobs, &limit, &claim, &again, &again, &count, &rest, &count, &later, &ended,
                &count,
            ];
            agree(Plans::Engine, &steps);
        }
    }
}

#[test]
fn claim_is_in_vain_while_another_has_looked_at_the_limit() {
    let before = [&push(&["a", "b"]), &limit(1)];
    let look = sql("SELECT FROM lockapi.queue_limit WHERE namespace = $n FOR SHARE");
    let schedule = Schedule::new(&before, &look, &claim(2), NONE);
    schedule.then(&count()).run();
}
