//! Pauses of queues and of names, and queues that are drained.

use super::limited::{NONE, claim, limits, push};
use super::{Call, Nanos, call, refused};
use crate::log::{Answer, Op, Paused};
use crate::programs::limited::RATED;

const BROKEN: [&str; 1] = ["what is paused does not begin"];

fn paused(name: Option<&str>, how: Paused, times: (Nanos, Nanos)) -> Call {
    let op = Op::Pause {
        queue: RATED.to_owned(),
        name: name.map(str::to_owned),
        how,
    };
    call(0, op, times, Answer::Done)
}

/// The tenth job, whose name is heavy, is claimed from 20 s to 21 s.
fn claimed(changes: Vec<Call>) -> Vec<&'static str> {
    let mut calls = vec![
        push(10, RATED, None, (1, 2)),
        claim(10, RATED, (20, 21, 22)),
    ];
    calls.extend(changes);
    limits(calls)
}

#[test]
fn queues_and_names() {
    for name in [Some("heavy"), None] {
        let set = |how, times| paused(name, how, times);
        let with = |how, times| claimed(vec![set(how, times)]);
        assert_eq!(with(Paused::UntilResumed, (10, 11)), BROKEN);
        assert_eq!(with(Paused::ForMillis(11_001), (10, 11)), BROKEN);
        assert_eq!(with(Paused::ForMillis(10_999), (10, 11)), NONE);
        assert_eq!(with(Paused::Drained(500), (10, 11)), BROKEN);
        // The claim may have come before.
        assert_eq!(with(Paused::UntilResumed, (19, 21)), NONE);
        let resumed = set(Paused::No, (12, 13));
        let both = vec![set(Paused::UntilResumed, (10, 11)), resumed];
        assert_eq!(claimed(both), NONE);
    }
    // One that took long may have been sent twice: what came first undoes what others have set since.
    let late = |took: Nanos| {
        let resumed = paused(None, Paused::No, (10, 10 + took));
        let again = paused(None, Paused::UntilResumed, (15, 16));
        claimed(vec![resumed, again])
    };
    assert_eq!(late(3), BROKEN);
    assert_eq!(late(4), NONE);
    let other = paused(Some("light"), Paused::UntilResumed, (10, 11));
    assert_eq!(claimed(vec![other]), NONE);
    // It may have been refused, or nobody knows.
    let mut set = paused(None, Paused::UntilResumed, (10, 11));
    set.answer = set.answer.map(|(at, _)| (at, refused()));
    assert_eq!(claimed(vec![set]), NONE);
}

/// Nobody has a job that he had before a drain that is complete.
#[test]
fn queues_that_are_drained() {
    let drained = |held, answer| {
        let mut drain = paused(None, Paused::Drained(500), (23, 25));
        drain.answer = drain.answer.map(|(at, _)| (at, answer));
        let calls = vec![
            push(10, RATED, None, (1, 2)),
            claim(10, RATED, (20, 21, held)),
            drain,
        ];
        limits(calls)
    };
    let runs = ["in a drained queue nothing runs"];
    assert_eq!(drained(26, Answer::Done), runs);
    assert_eq!(drained(25, Answer::Done), NONE);
    // It was told that one runs, or that somebody has resumed the queue.
    assert_eq!(drained(26, Answer::Number(1)), NONE);
    assert_eq!(drained(26, Answer::Nothing), NONE);
}
