//! Histories of limited queues that break one promise each.

use super::tests::{broken, call, history, refused};
use super::{Call, History};
use crate::conductor::AppliedFault;
use crate::log::{Answer, Claimed, Failed, How, Nanos, Op, Paused, SECOND};
use crate::plan::Fault;
use crate::programs::limited::{GROUPED, LIMITED, ORDERED, PACED, RATED};

fn push(job: i64, queue: &str, group: Option<&str>, times: (Nanos, Nanos)) -> Call {
    let op = Op::Push {
        job,
        queue: queue.to_owned(),
        group: group.map(str::to_owned),
        delay: 0,
        with: None,
        inside: false,
    };
    call(0, op, times, Answer::Number(job + 1000))
}

/// Claimed under the number of the job, and held until then; of a group it was admitted when it was asked for.
fn claim(job: i64, queue: &str, (asked, answered, held): (Nanos, Nanos, Nanos)) -> Call {
    let op = Op::Claim {
        queue: queue.to_owned(),
        wait: 1,
        extended: true,
    };
    let claimed = Claimed {
        job,
        token: job,
        due: i64::try_from(asked * 1_000_000).unwrap(),
    };
    Call {
        held: [(job, held * SECOND)].into(),
        ..call(1, op, (asked, answered), Answer::Jobs(vec![claimed]))
    }
}

fn settle(job: i64, how: How, times: (Nanos, Nanos), answer: Answer) -> Call {
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
fn limits(calls: Vec<Call>) -> Vec<&'static str> {
    of(&history(calls))
}

fn of(history: &History) -> Vec<&'static str> {
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

const MORE: [&str; 1] = ["no more jobs run than may"];
const NONE: [&str; 0] = [];
const BY: &str = "what is cancelled was cancelled by somebody";
const ORDER: &str = "jobs of an ordered group have an order";
const THERE: &str = "what is there can be cancelled";

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

fn unknown() -> Answer {
    Answer::Failed {
        what: Failed::Unknown,
        kind: "Indeterminate".to_owned(),
        message: String::new(),
    }
}

#[test]
fn what_is_there_can_be_cancelled() {
    let cancelled = |pushed, more: Vec<Call>| {
        let mut calls = vec![
            push(16, LIMITED, None, pushed),
            call(0, Op::Cancel { job: 16 }, (5, 6), Answer::Nothing),
        ];
        calls.extend(more);
        limits(calls)
    };
    let acked = |at, answer| {
        let claimed = claim(16, LIMITED, (3, 3, 4));
        vec![claimed, settle(16, How::Ack, at, answer)]
    };
    let broken = [THERE];
    assert_eq!(cancelled((1, 2), vec![]), broken);
    assert_eq!(cancelled((4, 7), vec![]), NONE);
    assert_eq!(cancelled((1, 2), acked((7, 8), Answer::Done)), broken);
    assert_eq!(cancelled((1, 2), acked((4, 8), Answer::Done)), NONE);
    assert_eq!(cancelled((1, 2), acked((4, 5), refused())), broken);
    assert_eq!(cancelled((1, 2), acked((4, 5), unknown())), NONE);
}

/// A job whose cancellation found nothing is not excused by it; one whose cancellation is not known is, if it is in the archive.
#[test]
fn cancellations_that_found_nothing() {
    let pushed = |answer, there: bool| {
        let cancel = call(0, Op::Cancel { job: 1 }, (5, 6), answer);
        let mut history = history([push(1, RATED, None, (1, 2)), cancel]);
        history.tables.cancelled.extend(there.then_some(1));
        broken(&history)
    };
    assert_eq!(pushed(unknown(), true), NONE);
    assert_eq!(pushed(unknown(), false), ["no job is lost"]);
    assert_eq!(pushed(Answer::Nothing, false), ["no job is lost", THERE]);
    let with = |calls: Vec<Call>, there: bool| {
        let mut history = history(calls);
        history.tables.cancelled.extend(there.then_some(1));
        of(&history)
    };
    let ordered = |answer, there| {
        let calls = vec![
            push(1, ORDERED, Some("a"), (1, 2)),
            push(2, ORDERED, Some("a"), (3, 4)),
            call(0, Op::Cancel { job: 1 }, (5, 6), answer),
            claim(2, ORDERED, (7, 8, 9)),
        ];
        with(calls, there)
    };
    assert_eq!(ordered(unknown(), true), NONE);
    assert_eq!(ordered(unknown(), false), [ORDER]);
    assert_eq!(ordered(Answer::Nothing, false), [ORDER, THERE]);
    let told = |answer, there| {
        let told = call(0, Op::Result { job: 1, wait: 0 }, (8, 9), Answer::Cancelled);
        let cancel = call(0, Op::Cancel { job: 1 }, (5, 6), answer);
        with(vec![push(1, RATED, None, (1, 2)), cancel, told], there)
    };
    assert_eq!(told(unknown(), true), NONE);
    assert_eq!(told(unknown(), false), [BY]);
    assert_eq!(told(Answer::Nothing, false), [BY, THERE]);
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
fn names() {
    let paused = |how, times| {
        let op = Op::Pause {
            queue: RATED.to_owned(),
            name: "heavy".to_owned(),
            how,
        };
        call(0, op, times, Answer::Done)
    };
    let claimed = |changes: Vec<Call>| {
        let mut calls = vec![
            push(10, RATED, None, (1, 2)),
            claim(10, RATED, (20, 21, 22)),
        ];
        calls.extend(changes);
        limits(calls)
    };
    let broken = ["what is paused does not begin"];
    assert_eq!(
        claimed(vec![paused(Paused::UntilResumed, (10, 11))]),
        broken
    );
    let until = |millis| claimed(vec![paused(Paused::ForMillis(millis), (10, 11))]);
    assert_eq!(until(11_001), broken);
    assert_eq!(until(10_999), NONE);
    assert_eq!(claimed(vec![paused(Paused::UntilResumed, (19, 21))]), NONE);
    let resumed = paused(Paused::No, (12, 13));
    let both = vec![paused(Paused::UntilResumed, (10, 11)), resumed];
    assert_eq!(claimed(both), NONE);
}

#[test]
fn order() {
    let checked = |begun, acked| {
        limits(vec![
            push(1, ORDERED, Some("a"), (1, 2)),
            push(2, ORDERED, Some("a"), (3, 4)),
            claim(1, ORDERED, (5, 6, 7)),
            settle(1, How::Nack, (7, 8), Answer::Done),
            claim(1, ORDERED, (9, 10, 11)),
            settle(1, How::Ack, acked, Answer::Done),
            claim(2, ORDERED, (begun - 1, begun, begun)),
        ])
    };
    assert_eq!(checked(14, (12, 13)), NONE);
    assert_eq!(checked(14, (12, 20)), NONE);
    assert_eq!(
        checked(9, (12, 13)),
        ["jobs of an ordered group have an order"]
    );
    // Which of two that overlap is first is not known.
    let calls = vec![
        push(1, ORDERED, Some("a"), (1, 3)),
        push(2, ORDERED, Some("a"), (2, 4)),
        claim(2, ORDERED, (5, 6, 7)),
    ];
    assert_eq!(limits(calls), NONE);
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
    // Claims whose answers were lost took the permits.
    let mut calls = at_once(RATED, None, 4);
    calls.push(call(1, calls[1].op.clone(), (2, 3), refused()));
    assert_eq!(limits(calls), NONE);
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

/// The third job has a result, and is called 1003.
#[test]
fn results() {
    let checked = |more: Vec<Call>, results: &[(i64, i64)]| {
        let mut calls = vec![
            push(3, RATED, None, (1, 2)),
            claim(3, RATED, (3, 4, 5)),
            settle(3, How::Ack, (6, 7), Answer::Done),
        ];
        calls.extend(more);
        let mut history = history(calls);
        history.tables.results = results.to_vec();
        of(&history)
    };
    let asked = |answer| call(0, Op::Result { job: 3, wait: 0 }, (8, 9), answer);
    let wrong = ["a job has the result of the delivery that completed it"];
    assert_eq!(checked(vec![asked(Answer::Number(3))], &[(1003, 3)]), NONE);
    assert_eq!(checked(vec![asked(Answer::Nothing)], &[(1003, 3)]), wrong);
    let waited = |times| {
        let asked = call(0, Op::Result { job: 3, wait: 4000 }, times, Answer::Nothing);
        checked(vec![asked], &[(1003, 3)])
    };
    assert_eq!(waited((5, 9)), wrong);
    assert_eq!(waited((2, 6)), NONE);
    // What was refused is repeated.
    let again = settle(3, How::Ack, (5, 6), refused());
    assert_eq!(checked(vec![again], &[(1003, 3)]), NONE);
    assert_eq!(checked(vec![], &[]), wrong);
    assert_eq!(checked(vec![], &[(1003, 2)]), wrong);
    assert_eq!(checked(vec![asked(Answer::Number(2))], &[(1003, 3)]), wrong);
    assert_eq!(checked(vec![asked(Answer::Done)], &[(1003, 3)]), wrong);
    let cancelled = checked(vec![asked(Answer::Cancelled)], &[(1003, 3)]);
    assert_eq!(cancelled, ["what is cancelled was cancelled by somebody"]);
}

#[test]
fn cancellations() {
    let checked = |answer, more: Vec<Call>, there: bool| {
        let cancel = call(0, Op::Cancel { job: 1 }, (5, 6), answer);
        let mut calls = vec![push(1, RATED, None, (1, 2)), cancel];
        calls.extend(more);
        let mut history = history(calls);
        history.tables.cancelled.extend(there.then_some(1));
        of(&history)
    };
    assert_eq!(checked(Answer::Done, vec![], true), NONE);
    assert_eq!(
        checked(Answer::Done, vec![], false),
        ["what is confirmed lasts"]
    );
    let nothing = ["what did not happen has no effect"];
    assert_eq!(checked(Answer::Nothing, vec![], true), [THERE, nothing[0]]);
    assert_eq!(checked(refused(), vec![], true), nothing);
    let acked = settle(1, How::Ack, (8, 9), Answer::Done);
    assert_eq!(
        checked(Answer::Done, vec![acked], true),
        ["what is cancelled is not done"]
    );
    let later = claim(1, RATED, (8, 9, 9));
    assert_eq!(
        checked(Answer::Done, vec![later], true),
        ["what is cancelled is not delivered"]
    );
    let before = claim(1, RATED, (3, 4, 9));
    assert_eq!(checked(Answer::Done, vec![before], true), NONE);
    let told = |answer, times| call(1, Op::Result { job: 1, wait: 0 }, times, answer);
    let asked = |answer| checked(Answer::Done, vec![told(answer, (8, 9))], true);
    assert_eq!(asked(Answer::Cancelled), NONE);
    assert_eq!(asked(refused()), NONE);
    let wrong = ["who asks for what was cancelled is told"];
    assert_eq!(asked(Answer::Nothing), wrong);
    let earlier = told(Answer::Nothing, (5, 7));
    assert_eq!(checked(Answer::Done, vec![earlier], true), NONE);
}
