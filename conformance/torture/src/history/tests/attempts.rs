//! How often jobs are delivered, and dead letters.

use super::limited::{push, settle};
use super::{Call, Dead, Fault, History, Nanos, SECOND, applied, call, history, refused, unknown};
use crate::history::attempts;
use crate::log::{Answer, Claimed, How, Op};
use crate::programs::limited::FEW;

pub(super) const NUMBER: &str = "a delivery tells which of its job it is";
const MORE: &str = "no job is tried more often than it may";
const LAST: &str = "a job dies with its last attempt";
const TRIED: &str = "no job dies that was not tried";

fn broken(history: &History) -> Vec<&'static str> {
    let broken = attempts::check(history);
    broken.iter().map(|it| it.promise).collect()
}

/// A delivery of the first job, of three at most.
fn claim(token: i64, attempt: u32, at: Nanos) -> Call {
    let op = Op::Claim {
        queue: FEW.to_owned(),
        wait: 1,
        extended: true,
    };
    let claimed = Claimed {
        job: 1,
        token,
        due: 0,
        attempt,
        most: 3,
    };
    call(1, op, (at, at), Answer::Jobs(vec![claimed]))
}

fn ended(token: i64, how: How, at: Nanos, answer: Answer) -> Call {
    let mut settled = settle(1, how, (at, at), answer);
    if let Op::Settle { token: of, .. } = &mut settled.op {
        *of = token;
    }
    settled
}

/// A job that was pushed, and what else there is.
fn pushed(calls: impl IntoIterator<Item = Call>) -> History {
    let push = push(1, FEW, None, (1, 2));
    history([push].into_iter().chain(calls))
}

fn checked(calls: impl IntoIterator<Item = Call>) -> Vec<&'static str> {
    broken(&pushed(calls))
}

#[test]
fn deliveries_are_counted() {
    let again = |how, answer, attempt| {
        checked([
            claim(7, 1, 10),
            ended(7, how, 11, answer),
            claim(8, attempt, 12),
        ])
    };
    // What failed, and what nobody has answered, counts.
    for how in [How::Nack, How::Abandon, How::AckIn] {
        assert_eq!(again(how, refused(), 2), [""; 0]);
        assert_eq!(again(how, refused(), 1), [NUMBER]);
        assert_eq!(again(how, refused(), 3), [NUMBER]);
    }
    for how in [How::Release, How::Snooze] {
        assert_eq!(again(how, Answer::Done, 1), [""; 0]);
        assert_eq!(again(how, Answer::Done, 2), [NUMBER]);
        // It may have taken place, or not.
        assert_eq!(again(how, unknown(), 1), [""; 0]);
        assert_eq!(again(how, unknown(), 2), [""; 0]);
        // It has not.
        assert_eq!(again(how, refused(), 1), [NUMBER]);
        assert_eq!(again(how, refused(), 2), [""; 0]);
    }
    assert_eq!(checked([claim(7, 2, 10)]), [NUMBER]);
    // In the order of tokens, whoever is told first.
    let order = |one, other| checked([claim(8, one, 10), claim(7, other, 12)]);
    assert_eq!(order(2, 1), [""; 0]);
    assert_eq!(order(1, 2), [NUMBER, NUMBER]);
}

/// What a worker has claimed ahead may go back before its handler begins.
#[test]
fn deliveries_that_were_not_begun() {
    let again = |attempt| {
        let mut ahead = claim(7, 1, 10);
        if let Op::Claim { wait, .. } = &mut ahead.op {
            *wait = 0;
        }
        checked([ahead, claim(8, attempt, 12)])
    };
    assert_eq!(again(1), [""; 0]);
    assert_eq!(again(2), [""; 0]);
    assert_eq!(again(3), [NUMBER]);
}

/// A claim of which nobody was told may have taken it.
#[test]
fn deliveries_that_nobody_knows() {
    let lost = |at, answer: Option<Answer>| {
        let mut lost = claim(9, 1, at);
        lost.answer = answer.map(|answer| (at * SECOND, answer));
        lost
    };
    let with = |lost| checked([claim(7, 1, 50), lost, claim(8, 3, 60)]);
    assert_eq!(with(lost(55, None)), [""; 0]);
    // What was refused took nothing.
    assert_eq!(with(lost(55, Some(refused()))), [NUMBER]);
    assert_eq!(with(lost(55, Some(unknown()))), [""; 0]);
    assert_eq!(with(lost(5, Some(unknown()))), [NUMBER]);
    assert_eq!(with(lost(61, None)), [NUMBER]);
    // Its lease has not ended: the program finds again what it took, which costs none.
    assert_eq!(with(lost(60, Some(unknown()))), [NUMBER]);
    let mut slow = lost(55, Some(Answer::Jobs(Vec::new())));
    assert_eq!(with(slow.clone()), [NUMBER]);
    slow.asked = 51 * SECOND;
    assert_eq!(with(slow), [""; 0]);
    // One that was answered may have been sent twice.
    let cut = |place| {
        let other = lost(57, Some(Answer::Jobs(Vec::new())));
        let mut history = pushed([claim(7, 1, 50), other, claim(8, 3, 60)]);
        history.applied = vec![applied(Fault::CutAfter, (55, 60), Some(place))];
        broken(&history)
    };
    assert_eq!(cut(1), [""; 0]);
    assert_eq!(cut(0), [NUMBER]);
    // It was sent long before, and comes later only where something holds it up.
    let early = |faults: &[Fault]| {
        let calls = [claim(7, 1, 50), lost(45, None), claim(8, 3, 60)];
        let mut history = pushed(calls);
        history.calls[2].answer = Some((45 * SECOND, refused()));
        let faults = faults.iter();
        history.applied = faults.map(|it| applied(*it, (44, 46), Some(1))).collect();
        broken(&history)
    };
    assert_eq!(early(&[Fault::CutAfter]), [NUMBER]);
    assert_eq!(early(&[Fault::CutAfter, Fault::FreezeSessions]), [""; 0]);
}

#[test]
fn deliveries_beyond_the_last() {
    let all = |last| checked([claim(7, 1, 10), claim(8, 2, 12), claim(9, 3, 14), last]);
    assert_eq!(all(claim(10, 4, 16)), [MORE]);
    assert_eq!(
        all(ended(9, How::Nack, 16, Answer::Dead)),
        ["what is confirmed lasts"]
    );
    assert_eq!(all(ended(9, How::Nack, 16, Answer::Done)), [LAST]);
    assert_eq!(all(ended(9, How::Nack, 16, refused())), [""; 0]);
    let early = ended(8, How::Nack, 13, Answer::Dead);
    assert!(all(early).contains(&LAST));
}

#[test]
fn dead_letters() {
    let dead = |calls: Vec<Call>, attempts, errors: &[i64]| {
        let mut history = pushed(calls);
        let errors = errors.to_vec();
        history.tables.dead.insert(1, Dead { attempts, errors });
        broken(&history)
    };
    let tried = || vec![claim(7, 1, 10), claim(8, 2, 12), claim(9, 3, 14)];
    assert_eq!(dead(tried(), 3, &[1, 2, 3]), [""; 0]);
    let with = |more: Vec<Call>| dead([tried(), more].concat(), 3, &[1, 2, 3]);
    assert_eq!(with(vec![ended(9, How::Nack, 16, Answer::Dead)]), [""; 0]);
    // The last went back, so that it has another.
    assert_eq!(
        with(vec![ended(9, How::Release, 16, Answer::Done)]),
        [TRIED]
    );
    assert_eq!(dead(tried()[..2].to_vec(), 3, &[1, 2, 3]), [TRIED]);
    assert_eq!(dead(tried()[..2].to_vec(), 2, &[1, 2]), [TRIED]);
    assert_eq!(dead(vec![], 3, &[1, 2, 3]), [TRIED]);
    let mut lost = claim(9, 3, 14);
    lost.answer = None;
    let unseen = [&tried()[..2], &[lost]].concat();
    assert_eq!(dead(unseen, 3, &[1, 2, 3]), [""; 0]);
    let tells = ["a dead letter tells of its attempts"];
    assert_eq!(dead(tried(), 3, &[1, 3]), tells);
    assert_eq!(dead(tried(), 3, &[1, 2, 2]), tells);
    let acked = ended(9, How::Ack, 16, Answer::Done);
    assert_eq!(with(vec![acked]), ["what is dead is not done"]);
    let told = ended(9, How::Nack, 16, Answer::Dead);
    let later = claim(10, 3, 17);
    assert!(with(vec![told, later]).contains(&"what is dead is not delivered"));
    let asked = |answer, at| {
        let told = ended(9, How::Nack, 16, Answer::Dead);
        let result = Op::Result { job: 1, wait: 0 };
        with(vec![told, call(0, result, (at, at), answer)])
    };
    assert_eq!(asked(Answer::Dead, 17), [""; 0]);
    assert_eq!(asked(refused(), 17), [""; 0]);
    assert_eq!(asked(Answer::Nothing, 15), [""; 0]);
    assert_eq!(
        asked(Answer::Nothing, 17),
        ["who asks for what is dead is told"]
    );
    // Its other attempts are known, and it is a dead letter, so that it is not lost.
    let lost = |dead: bool| {
        let mut history = pushed(tried());
        let errors = vec![1, 2, 3];
        let letter = dead.then_some((
            1,
            Dead {
                attempts: 3,
                errors,
            },
        ));
        history.tables.dead.extend(letter);
        super::broken(&history)
    };
    assert_eq!(lost(true), [""; 0]);
    assert_eq!(lost(false), ["no job is lost"]);
}
