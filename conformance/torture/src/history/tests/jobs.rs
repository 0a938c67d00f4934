//! Jobs of queues without limits.

use super::*;

pub(super) const BY_SOMEBODY: &str = "a job is done by whoever acknowledges it";

#[test]
fn jobs() {
    let checked = |calls: Vec<Call>, effects: &[(i64, i64, bool)]| {
        let mut history = history(calls);
        history.tables.effects = effects.to_vec();
        broken(&history)
    };
    let whole = || {
        let mut claimed = claim(2, 7, (3, 4));
        claimed.held = [(7, 4 * SECOND)].into();
        vec![
            push(2, Answer::Done),
            claimed,
            ack(2, 7, (5, 6), How::AckIn),
        ]
    };
    assert_eq!(checked(whole(), &[(2, 7, true)]), [""; 0]);
    assert_eq!(
        checked(vec![push(2, Answer::Done)], &[]),
        ["no job is lost"]
    );
    let twice = checked(whole(), &[(2, 7, true), (2, 8, true)]);
    let strange = "what is there was asked for";
    assert_eq!(twice, ["effects of a transaction happen once", strange]);
    let delivered = vec![push(2, refused()), claim(2, 7, (3, 4))];
    assert_eq!(
        checked(delivered, &[]),
        ["what did not happen has no effect"]
    );
    let with = |call| {
        let mut calls = whole();
        calls.push(call);
        checked(calls, &[(2, 7, true)])
    };
    assert_eq!(with(claim(2, 9, (8, 9))), ["what is done is not delivered"]);
    assert_eq!(
        with(ack(2, 7, (5, 7), How::Ack)),
        ["a job is acknowledged once"]
    );
    let mut held = claim(2, 6, (3, 3));
    held.held = [(6, 5 * SECOND)].into();
    assert_eq!(with(held), ["a job has one handler"]);
    let mut had = whole();
    had[1].held = [(7, 5 * SECOND)].into();
    let mut taken = claim(2, 6, (3, 5));
    taken.answer = taken.answer.map(|(_, jobs)| (4 * SECOND + 1, jobs));
    had.push(taken);
    let late = checked(had.clone(), &[(2, 7, true)]);
    assert_eq!(late, [""; 0], "nobody had it");
    had[3].held = [(6, 5 * SECOND)].into();
    let both = checked(had, &[(2, 7, true)]);
    assert_eq!(both, ["a job has one handler"]);
    // Whoever was given it says nothing, but asked while the other had it.
    let mut had = claim(2, 7, (3, 4));
    had.held = [(7, 8 * SECOND)].into();
    let (given, done) = (claim(2, 9, (5, 6)), ack(2, 9, (9, 10), How::AckIn));
    let meanwhile = vec![push(2, Answer::Done), had, given, done];
    let meanwhile = checked(meanwhile, &[(2, 9, true)]);
    assert_eq!(meanwhile, ["a job has one handler"]);
    for how in [How::Nack, How::Snooze, How::Release] {
        let (first, second) = (claim(2, 7, (3, 4)), claim(2, 9, (5, 6)));
        let (stale, done) = (ack(2, 7, (7, 8), how), ack(2, 9, (9, 10), How::AckIn));
        let calls = vec![push(2, Answer::Done), first, second, stale, done];
        let stale = "a delivery that is not the latest changes nothing";
        assert_eq!(checked(calls, &[(2, 9, true)]), [stale]);
    }
    let mut cancelled = history(whole());
    cancelled.tables.effects = vec![(2, 7, true)];
    cancelled.tables.cancelled = [2].into();
    let broken = broken(&cancelled);
    assert!(
        broken.contains(&"what is cancelled is not done"),
        "{broken:?}"
    );
}

/// What a worker claims and acknowledges is checked like what others do.
#[test]
fn workers() {
    let checked = |calls: Vec<Call>| {
        let mut history = history(calls);
        history.tables.effects = vec![(3, 7, false)];
        history.handled = vec![Handled {
            program: 1,
            job: 3,
            token: 7,
            at: 4 * SECOND,
            held: 4 * SECOND,
        }];
        broken(&history)
    };
    let twice = {
        let mut history = history(vec![push(3, Answer::Done), claim(3, 7, (3, 4))]);
        let handled = |at| Handled {
            program: 1,
            job: 3,
            token: 7,
            at: at * SECOND,
            held: 9 * SECOND,
        };
        history.handled = vec![handled(4), handled(6)];
        broken(&history)
    };
    assert!(twice.contains(&"a delivery has one handler"), "{twice:?}");
    let whole = || {
        let affected = call(1, Op::Effect { job: 3 }, (4, 5), Answer::Done);
        let acked = ack(3, 7, (5, 6), How::Ack);
        vec![push(3, Answer::Done), claim(3, 7, (3, 4)), affected, acked]
    };
    assert_eq!(checked(whole()), [""; 0]);
    let mut unasked = whole();
    unasked.remove(2);
    assert_eq!(checked(unasked), ["what is there was asked for"]);
    let with = |call| checked(whole().into_iter().chain([call]).collect());
    assert_eq!(with(claim(3, 9, (8, 9))), ["what is done is not delivered"]);
    let twice = with(ack(3, 8, (6, 7), How::Ack));
    assert_eq!(twice, ["a job is acknowledged once"]);
    let later = with(claim(3, 8, (4, 4)));
    let stale = "a delivery that is not the latest changes nothing";
    assert_eq!(later, [stale]);
}

/// What is refused has not done a job.
#[test]
fn jobs_that_have_ended() {
    let ended = |more: Option<Call>| {
        let calls = [push(2, Answer::Done), claim(2, 7, (3, 4))];
        history(calls.into_iter().chain(more))
    };
    let is_done_by_nobody = |history: &History| {
        let violations = history.violations();
        violations.iter().any(|it| it.promise == BY_SOMEBODY)
    };
    let acked = |how, answer: Option<Answer>| {
        let mut acked = ack(2, 7, (5, 6), how);
        acked.answer = answer.map(|answer| (6 * SECOND, answer));
        is_done_by_nobody(&ended(Some(acked)))
    };
    for how in [How::Ack, How::AckIn] {
        assert!(acked(how, Some(refused())));
        // One that was not answered, or of which nobody knows, may have done it.
        assert!(!acked(how, Some(Answer::Done)));
        assert!(!acked(how, Some(unknown())));
        assert!(!acked(how, None));
    }
    for how in [How::Nack, How::Snooze, How::Release, How::Abandon] {
        assert!(acked(how, Some(Answer::Done)));
    }
    assert!(is_done_by_nobody(&ended(None)));
    let with = |change: fn(&mut History)| {
        let mut history = ended(None);
        change(&mut history);
        is_done_by_nobody(&history)
    };
    assert!(!with(|it| it.tables.left = vec![(2, String::new())]));
    assert!(!with(|it| it.tables.cancelled = [2].into()));
    let dead = |it: &mut History| {
        let (attempts, errors) = (1, vec![1]);
        it.tables.dead.insert(2, Dead { attempts, errors });
    };
    assert!(!with(dead));
    // Nobody knows whether it was pushed.
    let unseen = history([push(2, unknown())]);
    assert!(!is_done_by_nobody(&unseen));
}
