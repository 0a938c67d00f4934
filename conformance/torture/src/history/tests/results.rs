//! Results and cancellations.

use super::limited::{BY, NONE, ORDER, THERE, claim, limits, of, push, settle};
use super::{Call, Dead, broken, call, history, refused, unknown};
use crate::log::{Answer, How, Op};
use crate::programs::limited::{LIMITED, ORDERED, RATED};

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
    // It may have become a dead letter before.
    let mut dead = history([
        push(16, LIMITED, None, (1, 2)),
        call(0, Op::Cancel { job: 16 }, (5, 6), Answer::Nothing),
    ]);
    let (attempts, errors) = (3, vec![1, 2, 3]);
    dead.tables.dead.insert(16, Dead { attempts, errors });
    assert_eq!(of(&dead), NONE);
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
