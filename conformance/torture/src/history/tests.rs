//! Histories that break one promise each, and one that breaks none.

use std::path::PathBuf;

use super::{Accepted, Call, Handled, History, Turn};
use crate::args::Role;
use crate::conductor::AppliedFault;
use crate::crew::Incarnation;
use crate::log::{Answer, Claimed, Failed, How, Kind, Nanos, Op, SECOND};
use crate::plan::Fault;

/// Calls of two programs.
pub(super) fn history(calls: impl IntoIterator<Item = Call>) -> History {
    let program = |number| Incarnation {
        number,
        place: usize::try_from(number).unwrap_or(0) - 1,
        name: "program".to_owned(),
        role: Role::Library {
            library: crate::args::Library::Sqlx,
            blocking: false,
        },
        pooled: false,
        log: PathBuf::new(),
        errors: PathBuf::new(),
        begun: 0,
        ended: Some(999 * SECOND),
        stops: Vec::new(),
    };
    History {
        programs: vec![program(1), program(2)],
        calls: calls.into_iter().collect(),
        calm: (1000 * SECOND, 1000 * SECOND),
        end: 1000 * SECOND,
        ..History::default()
    }
}

pub(super) fn call(
    program: usize,
    op: Op,
    (asked, answered): (Nanos, Nanos),
    answer: Answer,
) -> Call {
    Call {
        program,
        op,
        asked: asked * SECOND,
        answer: Some((answered * SECOND, answer)),
        held: [].into(),
    }
}

pub(super) fn refused() -> Answer {
    Answer::Failed {
        what: Failed::NotDone,
        kind: "Unavailable".to_owned(),
        message: String::new(),
    }
}

/// Held under a token from a time to a time.
fn hold(program: usize, kind: Kind, token: i64, (from, to): (Nanos, Nanos)) -> Call {
    let op = Op::Acquire {
        kind,
        key: "a".to_owned(),
        wait: 0,
        kept: true,
    };
    Call {
        held: [(token, to * SECOND)].into(),
        ..call(program, op, (from - 1, from), Answer::Token(token))
    }
}

fn write(token: i64, value: i64, times: (Nanos, Nanos), answer: Answer) -> Call {
    let op = Op::Write {
        register: "Lease a".to_owned(),
        token,
        value,
    };
    call(0, op, times, answer)
}

/// With writes that were accepted, as token and value, in this order.
fn accepted(calls: Vec<Call>, writes: &[(i64, i64)]) -> History {
    let mut history = history(calls);
    let versions = writes.iter().zip(1..);
    let accepted = versions.map(|(&(token, value), version)| Accepted {
        version,
        token,
        value,
    });
    let accepted = accepted.collect();
    history
        .tables
        .accepted
        .insert("Lease a".to_owned(), accepted);
    history
}

fn push(job: i64, answer: Answer) -> Call {
    let op = Op::Push {
        job,
        queue: "jobs".to_owned(),
        group: None,
        delay: 0,
        with: None,
        inside: false,
    };
    call(0, op, (1, 2), answer)
}

fn claim(job: i64, token: i64, (asked, answered): (Nanos, Nanos)) -> Call {
    let op = Op::Claim {
        queue: "jobs".to_owned(),
        wait: 0,
        extended: true,
    };
    let claimed = Claimed { job, token, due: 0 };
    call(1, op, (asked, answered), Answer::Jobs(vec![claimed]))
}

fn ack(job: i64, token: i64, times: (Nanos, Nanos), how: How) -> Call {
    call(1, Op::Settle { job, token, how }, times, Answer::Done)
}

fn check(at: Nanos) -> Call {
    let key = "a".to_owned();
    call(0, Op::Check { key }, (at, at), Answer::Taken(0))
}

fn ids(program: usize, ids: &[i64]) -> Call {
    let generator = "flakes".to_owned();
    let answer = Answer::Ids(ids.to_vec());
    call(program, Op::Ids { generator }, (1, 2), answer)
}

/// The promises that a history breaks.
pub(super) fn broken(history: &History) -> Vec<&'static str> {
    let mut broken: Vec<_> = history.violations().iter().map(|it| it.promise).collect();
    broken.dedup();
    broken
}

#[test]
fn exclusion() {
    let lease = |one, other| {
        let calls = [hold(0, Kind::Lease, 1, one), hold(1, Kind::Lease, 2, other)];
        broken(&history(calls))
    };
    assert_eq!(lease((2, 5), (6, 7)), [""; 0]);
    assert_eq!(lease((2, 8), (6, 7)), ["mutual exclusion"]);
    let permits = |count| {
        let calls = (1..=count).map(|token| hold(0, Kind::Semaphore, token, (2, 9)));
        broken(&history(calls))
    };
    assert_eq!(permits(2), [""; 0]);
    assert_eq!(permits(3), ["mutual exclusion"]);
}

/// A fault that concerns the program at a place, or any.
fn applied(fault: Fault, (from, to): (Nanos, Nanos), place: Option<usize>) -> AppliedFault {
    AppliedFault {
        fault,
        from: from * SECOND,
        to: to * SECOND,
        effect: 1,
        place,
    }
}

/// Who has lost a session knows it later, and only a fault ends a session.
#[test]
fn exclusion_by_sessions() {
    let wrong = ["mutual exclusion"];
    let mutex = |to, faults: &[AppliedFault]| {
        let (one, other) = (
            hold(0, Kind::Mutex, 1 << 10, (12, to)),
            hold(1, Kind::Mutex, 2 << 10, (16, to)),
        );
        let mut history = history([one, other]);
        history.applied = faults.to_vec();
        broken(&history)
    };
    assert_eq!(mutex(18, &[]), wrong);
    let ended = |fault, times, place| mutex(18, &[applied(fault, times, place)]);
    assert_eq!(ended(Fault::Terminate, (13, 14), None), [""; 0]);
    assert_eq!(
        mutex(60, &[applied(Fault::Terminate, (13, 14), None)]),
        wrong
    );
    // The session of the later one may have ended before it was told.
    assert_eq!(ended(Fault::CutAfter, (13, 14), Some(0)), [""; 0]);
    assert_eq!(ended(Fault::CutAfter, (15, 16), Some(1)), [""; 0]);
    // Before both were asked for, after both were granted, and in another program or none.
    assert_eq!(ended(Fault::Terminate, (2, 9), None), wrong);
    assert_eq!(ended(Fault::Terminate, (17, 18), None), wrong);
    assert_eq!(ended(Fault::CutAfter, (12, 13), Some(1)), wrong);
    assert_eq!(ended(Fault::CutAfter, (13, 14), Some(2)), wrong);
    for harmless in [Fault::Kill, Fault::Cancel, Fault::Vacuum, Fault::Clock] {
        assert_eq!(ended(harmless, (13, 14), None), wrong);
    }
    // One that is still believed in although another may have ended.
    let long = |to| {
        let (one, other) = (
            hold(0, Kind::Mutex, 1 << 10, (12, to)),
            hold(1, Kind::Mutex, 2 << 10, (16, 17)),
        );
        let mut history = history([one, other]);
        history.applied = vec![applied(Fault::CutAfter, (13, 14), Some(0))];
        broken(&history)
    };
    assert_eq!(long(30), [""; 0]);
    assert_eq!(long(32), wrong);
    // A plain client that has counted did so in a session that was there.
    let counted = |to| {
        let calls = [
            hold(0, Kind::Mutex, 1 << 10, (500, 504)),
            hold(1, Kind::Mutex, 0, (502, to)),
        ];
        let mut history = history(calls);
        history.programs[1].role = Role::Plain;
        history.applied = vec![applied(Fault::Settings, (3, 5), None)];
        broken(&history)
    };
    assert_eq!(counted(502), [""; 0]);
    assert_eq!(counted(504), wrong);
    // What was held back came later.
    let frozen = |place| {
        let faults = [
            applied(Fault::Terminate, (2, 9), None),
            applied(Fault::FreezeSessions, (8, 13), Some(place)),
        ];
        mutex(18, &faults)
    };
    assert_eq!(frozen(0), [""; 0]);
    assert_eq!(frozen(2), wrong);
}

/// Who is handed a mutex by another caller of the process is in the session of that.
#[test]
fn exclusion_by_sessions_that_hand_over() {
    let checked = |second, other| {
        let calls = [
            hold(0, Kind::Mutex, 1 << 10, (5, 11)),
            hold(0, Kind::Mutex, second, (12, 20)),
            hold(1, Kind::Mutex, other, (10, 13)),
        ];
        let mut history = history(calls);
        history.applied = vec![applied(Fault::Terminate, (6, 7), None)];
        broken(&history)
    };
    assert_eq!(checked((1 << 10) + 1, 2 << 10), [""; 0]);
    assert!(checked(3 << 10, 2 << 10).contains(&"mutual exclusion"));
}

#[test]
fn tokens() {
    let tokens = |kind, one, other, to, faults: &[AppliedFault]| {
        let calls = [hold(0, kind, one, (2, 3)), hold(1, kind, other, (6, to))];
        let mut history = history(calls);
        history.applied = faults.to_vec();
        broken(&history)
    };
    let grow = |kind, one, other, to| tokens(kind, one, other, to, &[]);
    assert_eq!(grow(Kind::Lease, 1, 2, 7), [""; 0]);
    assert_eq!(grow(Kind::Lease, 2, 1, 7), ["tokens grow"]);
    assert_eq!(
        grow(Kind::Lease, 1, 1, 7),
        ["tokens are unique", "tokens grow"]
    );
    // The session may have ended, and then that is known soon.
    let cut = |place| [applied(Fault::CutBefore, (5, 6), Some(place))];
    assert_eq!(tokens(Kind::Mutex, 2, 1, 7, &cut(1)), [""; 0]);
    assert_eq!(tokens(Kind::Mutex, 2, 1, 60, &cut(1)), ["tokens grow"]);
    assert_eq!(tokens(Kind::Mutex, 2, 1, 7, &cut(0)), ["tokens grow"]);
    assert_eq!(grow(Kind::Mutex, 2, 1, 7), ["tokens grow"]);
    let register = "Mutex a".to_owned();
    let op = Op::Write {
        register,
        token: 1,
        value: 10,
    };
    let mut calls = history([
        hold(0, Kind::Mutex, 2, (2, 3)),
        hold(1, Kind::Mutex, 1, (6, 7)),
        call(1, op, (6, 7), Answer::Done),
    ]);
    calls.applied = cut(1).to_vec();
    assert!(broken(&calls).contains(&"tokens grow"));
}

#[test]
fn writes() {
    let done = || {
        vec![
            write(1, 10, (1, 2), Answer::Done),
            write(2, 20, (3, 4), Answer::Done),
        ]
    };
    assert_eq!(broken(&accepted(done(), &[(1, 10), (2, 20)])), [""; 0]);
    assert_eq!(
        broken(&accepted(done(), &[(1, 10)])),
        ["what is confirmed lasts"]
    );
    let stale = broken(&accepted(done(), &[(2, 20), (1, 10)]));
    assert_eq!(
        stale,
        ["no stale write is accepted", "writes are linearizable"]
    );
    let refused = vec![write(1, 10, (1, 2), refused())];
    assert_eq!(
        broken(&accepted(refused, &[(1, 10)])),
        ["what did not happen has no effect"]
    );
    let twice = accepted(done(), &[(1, 10), (2, 20), (2, 20)]);
    assert_eq!(broken(&twice), ["a write happens once"]);
    let mut missing = accepted(done(), &[(1, 10), (1, 15), (2, 20)]);
    let of_lease = missing.tables.accepted.get_mut("Lease a");
    of_lease.expect("its writes").remove(1);
    assert_eq!(broken(&missing), ["a transaction has all its effects"]);
}

#[test]
fn counts() {
    let count = |number, times| {
        let counter = "a".to_owned();
        call(0, Op::Count { counter }, times, Answer::Number(number))
    };
    let counted = |numbers: [i64; 2], last| {
        let calls = [count(numbers[0], (1, 2)), count(numbers[1], (3, 4))];
        let mut history = history(calls);
        history.tables.counters.insert("a".to_owned(), last);
        broken(&history)
    };
    let lost = ["counts under a lock are not lost"];
    assert_eq!(counted([1, 2], 2), [""; 0]);
    assert_eq!(counted([1, 1], 1), lost);
    assert_eq!(counted([2, 1], 2), lost);
    assert_eq!(counted([1, 2], 1), lost);
}

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

#[test]
fn limits() {
    // Ten at once, and ten a second.
    assert_eq!(broken(&history((0..10).map(|_| check(5)))), [""; 0]);
    let twenty = (0..20).map(|n| check(5 + n / 10));
    assert_eq!(broken(&history(twenty)), [""; 0]);
    assert_eq!(broken(&history((0..12).map(|_| check(5)))), ["limits hold"]);
    // By the server's time it is known of one.
    let taken = |times: &[i64]| {
        let taken = |millis: &i64| Call {
            answer: Some((9 * SECOND, Answer::Taken(millis * 1_000_000))),
            ..check(5)
        };
        broken(&history(times.iter().map(taken)))
    };
    let burst = [1000; 10];
    assert_eq!(taken(&[&burst[..], &[1100, 1200]].concat()), [""; 0]);
    assert_eq!(taken(&[&burst[..], &[1099]].concat()), ["limits hold"]);
}

#[test]
fn generated() {
    assert_eq!(broken(&history([ids(0, &[1, 2]), ids(1, &[3])])), [""; 0]);
    let twice = history([ids(0, &[1, 2]), ids(1, &[2])]);
    assert_eq!(broken(&twice), ["ids are unique"]);
    let falling = history([ids(0, &[2, 1])]);
    assert_eq!(broken(&falling), ["ids of a generator grow"]);
}

/// Whoever is there until the end got permits and ids in the calm.
#[test]
fn whoever_asks_for_nothing_is_not_served() {
    let served = |calls: Vec<Call>, ended| {
        let mut history = history(calls);
        (history.calm, history.end) = ((2 * SECOND, 3 * SECOND), 30 * SECOND);
        for program in &mut history.programs {
            program.ended = ended;
        }
        history.programs[1].role = Role::Plain;
        broken(&history)
    };
    let starved = "everybody is served in the end";
    assert_eq!(served(vec![], None), [starved]);
    assert_eq!(served(vec![], Some(20 * SECOND)), [""; 0]);
    let drawn = |at| Call {
        answer: Some((at * SECOND, Answer::Ids(vec![1]))),
        ..ids(0, &[1])
    };
    assert_eq!(served(vec![drawn(5), check(1)], None), [starved]);
    assert_eq!(served(vec![drawn(5), check(5)], None), [""; 0]);
}

#[test]
fn answers() {
    let slow = |answered| {
        let asked = call(0, Op::Look, (1, answered), Answer::Done);
        broken(&history([asked]))
    };
    assert_eq!(slow(50), [""; 0]);
    assert_eq!(slow(70), ["every call is answered in time"]);
    let mut calm = history([call(0, Op::Look, (5, 6), refused())]);
    assert_eq!(broken(&calm), [""; 0]);
    (calm.calm, calm.is_quick) = ((2 * SECOND, 3 * SECOND), true);
    assert_eq!(broken(&calm), ["nothing fails without a cause"]);
}

/// In the calm only what has a time limit of its own is over too early, and statements of plain clients.
#[test]
fn answers_that_are_late() {
    let timed_out = |op, role| {
        let answer = Answer::Failed {
            what: Failed::NotDone,
            kind: "TimedOut".to_owned(),
            message: String::new(),
        };
        let mut history = history([call(0, op, (5, 6), answer)]);
        (history.calm, history.is_quick) = ((2 * SECOND, 3 * SECOND), true);
        history.programs[0].role = role;
        broken(&history)
    };
    let library = Role::Library {
        library: crate::args::Library::Sqlx,
        blocking: false,
    };
    let acquire = |wait| Op::Acquire {
        kind: Kind::Lease,
        key: "a".to_owned(),
        wait,
        kept: true,
    };
    let wrong = ["nothing fails without a cause"];
    assert_eq!(timed_out(acquire(1000), library), [""; 0]);
    assert_eq!(timed_out(acquire(0), library), wrong);
    let counter = "a".to_owned();
    assert_eq!(timed_out(Op::Count { counter }, library), [""; 0]);
    // It is told of no jobs when its time is over.
    let claim = Op::Claim {
        queue: "jobs".to_owned(),
        wait: 10,
        extended: true,
    };
    assert_eq!(timed_out(claim, library), wrong);
    assert_eq!(timed_out(Op::Look, library), wrong);
    assert_eq!(timed_out(Op::Look, Role::Plain), [""; 0]);
}

/// In the calm as well a job may be in the hands of a statement or of a transaction of another.
#[test]
fn jobs_that_are_locked() {
    let refused = |op, kind: &str, message: &str| {
        let answer = Answer::Failed {
            what: Failed::NotDone,
            kind: kind.to_owned(),
            message: message.to_owned(),
        };
        let mut history = history([call(0, op, (5, 6), answer)]);
        (history.calm, history.is_quick) = ((2 * SECOND, 3 * SECOND), true);
        broken(&history).contains(&"nothing fails without a cause")
    };
    let locked = "job 1 is locked by an open transaction; try again when that has ended";
    let settle = |how| Op::Settle {
        job: 1,
        token: 1,
        how,
    };
    assert!(!refused(Op::Cancel { job: 1 }, "Unavailable", locked));
    let edit = Op::Edit { job: 1, due: None };
    assert!(!refused(edit, "Unavailable", locked));
    assert!(!refused(settle(How::Snooze), "Locked", ""));
    assert!(refused(
        Op::Cancel { job: 1 },
        "Unavailable",
        "no connection"
    ));
    assert!(refused(settle(How::Snooze), "TimedOut", ""));
    assert!(refused(Op::Look, "Unavailable", locked));
}

#[test]
fn turns() {
    let terms = |from, to| Turn {
        program: 1,
        kinds: vec![Kind::Semaphore, Kind::Lease],
        from: from * SECOND,
        to: to * SECOND,
    };
    let checked = |calls: Vec<Call>, turn| {
        let mut history = history(calls);
        history.turns = vec![turn];
        broken(&history)
    };
    let both = || {
        let permit = hold(0, Kind::Semaphore, 1, (5, 6));
        vec![permit, hold(0, Kind::Lease, 2, (6, 7))]
    };
    let starved = ["everybody is served in the end"];
    assert_eq!(checked(both(), terms(3, 8)), [""; 0]);
    assert_eq!(checked(both()[..1].to_vec(), terms(3, 8)), starved);
    // What was granted before or afterwards does not count.
    assert_eq!(checked(both(), terms(5, 8)), starved);
    assert_eq!(checked(both(), terms(3, 5)), starved);
    let of_another = hold(1, Kind::Semaphore, 3, (5, 6));
    let calls = vec![of_another, hold(0, Kind::Lease, 2, (6, 7))];
    assert_eq!(checked(calls, terms(3, 8)), starved);
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

/// What nobody extends, and what somebody cancels, may be lost in the calm; nothing else.
#[test]
fn what_is_lost_without_a_fault() {
    let lost = |op, more: Vec<Call>| {
        let answer = Answer::Failed {
            what: Failed::NotDone,
            kind: "Lost".to_owned(),
            message: String::new(),
        };
        let mut history = history(more.into_iter().chain([call(0, op, (5, 6), answer)]));
        (history.calm, history.is_quick) = ((2 * SECOND, 3 * SECOND), true);
        broken(&history).contains(&"nothing fails without a cause")
    };
    let settle_by = |how| Op::Settle {
        job: 1,
        token: 7,
        how,
    };
    let settle = || settle_by(How::Nack);
    let by_hand = |token| {
        let mut claim = claim(1, token, (4, 5));
        if let Op::Claim { extended, .. } = &mut claim.op {
            *extended = false;
        }
        claim
    };
    let release = Op::Release {
        kind: Kind::Lease,
        key: "a".to_owned(),
        token: 7,
    };
    let acquired = |by_library| {
        let mut held = hold(0, Kind::Lease, 7, (4, 5));
        if let Op::Acquire { kept, wait, .. } = &mut held.op {
            (*kept, *wait) = (by_library, 1000);
        }
        vec![held]
    };
    assert!(lost(release.clone(), acquired(true)));
    assert!(!lost(release, acquired(false)));
    assert!(!lost(settle_by(How::Release), vec![claim(1, 7, (4, 5))]));
    // What was granted after a second may have been over.
    let mut late = claim(1, 7, (3, 4));
    assert!(!lost(settle(), vec![late.clone()]));
    if let Op::Claim { wait, .. } = &mut late.op {
        *wait = 900;
    }
    assert!(lost(settle(), vec![late]));
    assert!(lost(settle(), vec![claim(1, 7, (5, 5))]));
    assert!(lost(settle(), vec![by_hand(6)]));
    assert!(!lost(settle(), vec![by_hand(7)]));
    let cancel = |job| call(0, Op::Cancel { job }, (5, 6), Answer::Done);
    assert!(!lost(settle(), vec![cancel(1)]));
    assert!(lost(settle(), vec![cancel(2)]));
}

#[test]
fn jobs_that_are_put_off() {
    // Two seconds before anything else the clock of the machine was at zero.
    let edited = |due: Option<i64>, times, answer| {
        let edit = call(0, Op::Edit { job: 1, due }, times, answer);
        let calls = [push(1, Answer::Done), edit, claim(1, 7, (5, 6))];
        let mut history = history(calls.into_iter().chain([ack(1, 7, (8, 9), How::Ack)]));
        history.wall = 2 * SECOND;
        broken(&history).contains(&"what is put off begins when it is due")
    };
    let due = |seconds: i64| Some(seconds * 1_000_000);
    assert!(edited(due(9), (3, 4), Answer::Done));
    assert!(!edited(due(8), (3, 4), Answer::Done));
    assert!(!edited(None, (3, 4), Answer::Done));
    // It may have had an effect later, or none.
    assert!(!edited(due(9), (3, 5), Answer::Done));
    assert!(!edited(due(9), (3, 4), refused()));

    let pushed = |millis| {
        let mut push = push(1, Answer::Done);
        if let Op::Push { delay, .. } = &mut push.op {
            *delay = millis;
        }
        push
    };
    let early = |calls: Vec<Call>| {
        broken(&history(calls)).contains(&"what is put off begins when it is due")
    };
    assert!(early(vec![pushed(5100), claim(1, 7, (5, 6))]));
    assert!(!early(vec![pushed(5000), claim(1, 7, (5, 6))]));
    for how in [How::Nack, How::Snooze] {
        let again = |token, times| {
            let settled = ack(1, 7, (6, 6), how);
            vec![
                pushed(0),
                claim(1, 7, (5, 6)),
                settled,
                claim(1, token, times),
            ]
        };
        assert!(early(again(8, (6, 6))));
        assert!(!early(again(8, (6, 7))));
        assert!(!early(again(7, (6, 6))));
    }
}

#[test]
fn what_nobody_asked_for() {
    let strange = "what is there was asked for";
    let known = write(7, 1, (3, 4), Answer::Number(1));
    assert_eq!(broken(&accepted(vec![known.clone()], &[(7, 1)])), [""; 0]);
    let twice = accepted(vec![known.clone()], &[(7, 1), (7, 2)]);
    assert_eq!(broken(&twice), [strange]);
    assert_eq!(broken(&accepted(vec![known], &[(8, 1)])), [strange]);
    assert_eq!(broken(&accepted(vec![], &[(7, 1)])), [strange]);
}

/// Nobody writes under a lease once another was granted, also if the other has not written.
#[test]
fn writes_after_another_grant() {
    let written = |granted| {
        let writing = write(7, 1, (5, 6), Answer::Number(1));
        let mut history = accepted(vec![writing], &[(7, 1)]);
        history
            .calls
            .push(hold(1, Kind::Lease, 8, (granted, granted)));
        broken(&history)
    };
    assert_eq!(written(4), ["no stale write is accepted"]);
    assert_eq!(written(5), [""; 0]);
}

/// While nobody gets a permit for seconds, nobody is refused one.
#[test]
fn limits_that_refuse() {
    let asked = |at: Nanos, answer| {
        let key = "a".to_owned();
        call(0, Op::Check { key }, (at, at), answer)
    };
    let refused = |times: &[Nanos], at| {
        let granted = times.iter().map(|at| asked(*at, Answer::Taken(0)));
        let mut history = history(granted.chain([asked(at, Answer::Nothing)]));
        (history.calm, history.is_quick) = ((2 * SECOND, 20 * SECOND), true);
        broken(&history).contains(&"limits refuse only what is not there")
    };
    assert!(!refused(&[26, 27, 28, 29, 30], 30));
    assert!(refused(&[24, 27, 28, 29, 30], 30));
    assert!(refused(&[26, 27, 28, 29, 31], 30));
    // Before the calm others may have taken them, of which nobody knows.
    assert!(!refused(&[], 20));
}
