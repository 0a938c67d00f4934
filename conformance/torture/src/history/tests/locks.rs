//! Mutual exclusion and tokens.

use super::*;

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

/// Readers share the lock of a mutex, in which a fault may have ended their session long before.
#[test]
fn exclusion_of_readers() {
    let calls = |one, other, to, faults: &[AppliedFault]| {
        let mut history = history([hold(0, one, 0, (12, to)), hold(1, other, 0, (16, 18))]);
        history.applied = faults.to_vec();
        broken(&history)
    };
    let (wrong, ended) = (
        ["mutual exclusion"],
        [applied(Fault::Terminate, (2, 3), None)],
    );
    assert_eq!(calls(Kind::Reader, Kind::Reader, 17, &[]), [""; 0]);
    assert_eq!(calls(Kind::Reader, Kind::Mutex, 15, &[]), [""; 0]);
    assert_eq!(calls(Kind::Reader, Kind::Mutex, 17, &[]), wrong);
    assert_eq!(calls(Kind::Mutex, Kind::Reader, 17, &[]), wrong);
    assert_eq!(calls(Kind::Reader, Kind::Mutex, 17, &ended), [""; 0]);
    assert_eq!(calls(Kind::Mutex, Kind::Reader, 17, &ended), [""; 0]);
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
    // Nor is a write accepted in a session that has ended.
    let wrote = |program: usize, times| {
        let (one, other) = (1 << 10, 2 << 10);
        let op = Op::Write {
            register: "Mutex a".to_owned(),
            token: [one, other][program],
            value: 10,
        };
        let mut history = history([
            hold(0, Kind::Mutex, one, (12, 18)),
            hold(1, Kind::Mutex, other, (16, 18)),
            call(program, op, times, Answer::Done),
        ]);
        history.applied = vec![applied(Fault::CutAfter, (13, 14), Some(program))];
        broken(&history).contains(&"mutual exclusion")
    };
    assert!(wrote(0, (16, 17)));
    assert!(wrote(1, (16, 17)));
    assert!(!wrote(0, (15, 17)));
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
