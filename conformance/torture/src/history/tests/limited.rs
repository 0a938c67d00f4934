//! Limits of queues and groups; and what histories of such queues have in common.

use super::{AppliedFault, Call, Fault, History, broken, call, history, refused, unknown};
use crate::log::{Answer, Claimed, How, Nanos, Op, SECOND};
use crate::programs::limited::{GROUPED, LIMITED, ORDERED, PACED, RATED};

const MORE: [&str; 1] = ["no more jobs run than may"];
pub(super) const NONE: [&str; 0] = [];
pub(super) const BY: &str = "what is cancelled was cancelled by somebody";
pub(super) const ORDER: &str = "jobs of an ordered group have an order";
pub(super) const THERE: &str = "what is there can be cancelled";

pub(super) fn push(job: i64, queue: &str, group: Option<&str>, times: (Nanos, Nanos)) -> Call {
    let op = Op::Push {
        job,
        queue: queue.to_owned(),
        group: group.map(str::to_owned),
        delay: 0,
        with: None,
        inside: false,
        unique: None,
        attempts: 3,
    };
    call(0, op, times, Answer::Number(job + 1000))
}

/// Claimed under the number of the job, and held until then; of a group it was admitted when it was asked for.
pub(super) fn claim(job: i64, queue: &str, (asked, answered, held): (Nanos, Nanos, Nanos)) -> Call {
    let op = Op::Claim {
        queue: queue.to_owned(),
        wait: 1,
        extended: true,
    };
    let claimed = Claimed {
        job,
        token: job,
        due: i64::try_from(asked * 1_000_000).unwrap(),
        attempt: 1,
        most: 3,
    };
    Call {
        held: [(job, held * SECOND)].into(),
        ..call(1, op, (asked, answered), Answer::Jobs(vec![claimed]))
    }
}

pub(super) fn settle(job: i64, how: How, times: (Nanos, Nanos), answer: Answer) -> Call {
    call(
        1,
        Op::Settle {
            job,
            token: job,
            how,
        },
        times,
        answer,
    )
}

fn set(queue: &str, group: Option<&str>, most: Option<u32>, times: (Nanos, Nanos)) -> Call {
    let op = Op::SetLimit {
        queue: queue.to_owned(),
        group: group.map(str::to_owned),
        most,
    };
    call(0, op, times, Answer::Done)
}

/// The promises that are broken beside those of jobs, which are not whole here.
pub(super) fn limits(calls: Vec<Call>) -> Vec<&'static str> {
    of(&history(calls))
}

pub(super) fn of(history: &History) -> Vec<&'static str> {
    let mut broken = broken(history);
    broken.retain(|promise| *promise != "no job is lost");
    broken
}

/// Jobs that are claimed one second after the other, and all held until then.
fn claimed(count: i64, queue: &str, group: Option<&str>, from: Nanos) -> Vec<Call> {
    let calls = (1..=count).flat_map(|job| {
        let at = from + job.unsigned_abs();
        let number = job * 15 + 1;
        [
            push(number, queue, group, (1, 2)),
            claim(number, queue, (at, at, 100)),
        ]
    });
    calls.collect()
}

#[test]
fn places_of_queues() {
    assert_eq!(limits(claimed(4, LIMITED, None, 10)), NONE);
    assert_eq!(limits(claimed(5, LIMITED, None, 10)), MORE);
    let lowered = |times| {
        let mut calls = claimed(3, LIMITED, None, 10);
        calls.push(set(LIMITED, None, Some(2), times));
        limits(calls)
    };
    assert_eq!(lowered((4, 5)), MORE);
    // The third may have been claimed before, and what runs goes on.
    assert_eq!(lowered((12, 14)), NONE);
    // It may have been refused, or raised again.
    let mut calls = claimed(3, LIMITED, None, 10);
    calls.push(call(
        0,
        set(LIMITED, None, Some(2), (4, 5)).op,
        (4, 5),
        refused(),
    ));
    assert_eq!(limits(calls), NONE);
    let mut calls = claimed(3, LIMITED, None, 10);
    calls.push(set(LIMITED, None, Some(2), (4, 5)));
    calls.push(set(LIMITED, None, Some(3), (8, 12)));
    assert_eq!(limits(calls), NONE);
}

/// Nobody has what was cancelled; where nothing was there to cancel, its holder still has it.
#[test]
fn places_of_cancelled_jobs() {
    let cancelled = |answer: Answer| {
        let mut calls = claimed(5, LIMITED, None, 10);
        let gone = answer == Answer::Done;
        calls.push(call(0, Op::Cancel { job: 16 }, (12, 13), answer));
        let mut history = history(calls);
        history.tables.cancelled.extend(gone.then_some(16));
        of(&history)
    };
    assert_eq!(cancelled(Answer::Done), NONE);
    let nothing = cancelled(Answer::Nothing);
    assert_eq!(nothing, [MORE[0], THERE]);
    assert_eq!(cancelled(refused()), MORE);
    // The archive tells that it was none.
    assert_eq!(cancelled(unknown()), MORE);
}

#[test]
fn places_of_groups() {
    assert_eq!(limits(claimed(3, GROUPED, Some("a"), 10)), NONE);
    assert_eq!(limits(claimed(4, GROUPED, Some("a"), 10)), MORE);
    assert_eq!(limits(claimed(2, ORDERED, Some("a"), 10)), MORE);
    let with = |change| {
        let mut calls = claimed(2, GROUPED, Some("a"), 10);
        calls.push(change);
        limits(calls)
    };
    assert_eq!(with(set(GROUPED, None, Some(1), (4, 5))), MORE);
    assert_eq!(with(set(GROUPED, Some("a"), Some(1), (4, 5))), MORE);
    assert_eq!(with(set(GROUPED, Some("a"), Some(0), (4, 5)))[..1], MORE);
    assert_eq!(with(set(GROUPED, Some("b"), Some(0), (4, 5))), NONE);
    // They were admitted before.
    assert_eq!(with(set(GROUPED, None, Some(1), (20, 21))), NONE);
}

#[test]
fn places_of_keys() {
    let of = |numbers: &[i64]| {
        let each = numbers.iter().zip(["a", "b", "c", "d"]);
        let calls = each.flat_map(|(number, group)| {
            let at = number.unsigned_abs();
            [
                push(*number, GROUPED, Some(group), (1, 2)),
                claim(*number, GROUPED, (at, at, 100)),
            ]
        });
        limits(calls.collect())
    };
    assert_eq!(of(&[14, 22, 26]), NONE);
    assert_eq!(of(&[14, 22, 26, 28]), NONE);
    assert_eq!(of(&[14, 22, 26, 34]), MORE);
}

#[test]
fn rates() {
    let at_once = |queue, group, count: i64| {
        let calls = (1..=count).flat_map(|job| {
            let number = job * 15 + 1;
            let claimed = claim(number, queue, (5, 5, 5));
            [push(number, queue, group, (1, 2)), claimed]
        });
        calls.collect::<Vec<_>>()
    };
    assert_eq!(limits(at_once(RATED, None, 3)), NONE);
    assert_eq!(limits(at_once(RATED, None, 4)), ["rates of queues hold"]);
    // By the times of the server, which are exact.
    assert_eq!(limits(at_once(PACED, Some("a"), 2)), NONE);
    assert_eq!(
        limits(at_once(PACED, Some("a"), 3)),
        ["rates of groups hold"]
    );
    // Claims whose answers were lost took the permits, and those that were refused did not.
    let after = |answer| {
        let mut calls = at_once(RATED, None, 4);
        calls.push(call(1, calls[1].op.clone(), (2, 3), answer));
        limits(calls)
    };
    assert_eq!(after(unknown()), NONE);
    assert_eq!(after(refused()), ["rates of queues hold"]);
    // The clock was set between them.
    let mut set = history(at_once(PACED, Some("a"), 4));
    set.applied.push(AppliedFault {
        fault: Fault::Clock,
        from: 3 * SECOND,
        to: 4 * SECOND,
        effect: 1,
        place: None,
    });
    assert_eq!(of(&set), NONE);
}

#[test]
fn audits() {
    let audit = |count| {
        let queue = LIMITED.to_owned();
        limits(vec![call(
            0,
            Op::Audit { queue },
            (10, 11),
            Answer::Number(count),
        )])
    };
    assert_eq!(audit(0), NONE);
    assert_eq!(audit(1), ["the tables agree with the limits"]);
}
