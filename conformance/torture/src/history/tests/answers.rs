//! Answers, and who is served in the end.

use super::*;

#[test]
fn answers() {
    let slow = |answered| {
        let asked = call(0, Op::Look, (1, answered), Answer::Done);
        broken(&history([asked]))
    };
    assert_eq!(slow(50), [""; 0]);
    assert_eq!(slow(70), ["every call is answered in time"]);
    // In the calm a call ends with its time limit, of which there are two, and with what it was to wait.
    let calm = |op, took: Nanos, role, is_quick| {
        let mut history = history([call(0, op, (5, 5 + took), Answer::Done)]);
        (history.calm, history.is_quick) = ((2 * SECOND, 3 * SECOND), is_quick);
        history.programs[0].role = role;
        broken(&history).contains(&"every call is answered in time")
    };
    let library = Role::Library {
        library: crate::args::Library::Sqlx,
        blocking: false,
    };
    let result = |wait| Op::Result { job: 1, wait };
    assert!(calm(result(0), 21, library, true));
    assert!(!calm(result(0), 20, library, true));
    assert!(!calm(result(0), 21, library, false));
    assert!(!calm(result(2000), 21, library, true));
    assert!(calm(result(0), 13, Role::Plain, true));
    assert!(!calm(result(0), 12, Role::Plain, true));
    assert!(!calm(Op::Look, 50, Role::Plain, true));
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
    assert!(!refused(Op::Cancel { job: 1 }, "TimedOut", locked));
    let edit = Op::Edit { job: 1, due: None };
    assert!(!refused(edit, "TimedOut", locked));
    assert!(!refused(settle(How::Snooze), "Locked", ""));
    assert!(refused(
        Op::Cancel { job: 1 },
        "Unavailable",
        "no connection"
    ));
    assert!(refused(settle(How::Snooze), "TimedOut", ""));
    assert!(refused(Op::Look, "Unavailable", locked));
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
        held.asked += SECOND;
        if let Op::Acquire { kept, .. } = &mut held.op {
            *kept = by_library;
        }
        vec![held]
    };
    assert!(lost(release.clone(), acquired(true)));
    assert!(!lost(release, acquired(false)));
    // What goes back was not given back before: by its holder, or by the library where no handler has begun.
    let gives_back = |more| lost(settle_by(How::Release), more);
    let mut claimed = claim(1, 7, (5, 5));
    assert!(!gives_back(vec![claimed.clone()]));
    if let Op::Claim { wait, .. } = &mut claimed.op {
        *wait = 2000;
    }
    assert!(gives_back(vec![claimed.clone()]));
    let before = |token| ack(1, token, (4, 5), How::Release);
    assert!(!gives_back(vec![claimed.clone(), before(7)]));
    assert!(gives_back(vec![claimed, before(6)]));
    // What was granted after a second may have been over.
    let mut late = claim(1, 7, (3, 4));
    assert!(!lost(settle(), vec![late.clone()]));
    // Also where it was to wait, and may have been granted in the beginning.
    if let Op::Claim { wait, .. } = &mut late.op {
        *wait = 900;
    }
    assert!(!lost(settle(), vec![late.clone()]));
    late.asked += SECOND * 4 / 5;
    assert!(lost(settle(), vec![late]));
    // A mutex does not expire.
    let mutex = |most| {
        let mut held = hold(0, Kind::Mutex, 7, (4, 5));
        if let Op::Acquire { wait, .. } = &mut held.op {
            *wait = most;
        }
        let release = Op::Release {
            kind: Kind::Mutex,
            key: "a".to_owned(),
            token: 7,
        };
        lost(release, vec![held])
    };
    assert!(mutex(900));
    assert!(!mutex(700));
    assert!(lost(settle(), vec![claim(1, 7, (5, 5))]));
    assert!(lost(settle(), vec![by_hand(6)]));
    assert!(!lost(settle(), vec![by_hand(7)]));
    let cancel = |job| call(0, Op::Cancel { job }, (5, 6), Answer::Done);
    assert!(!lost(settle(), vec![cancel(1)]));
    assert!(lost(settle(), vec![cancel(2)]));
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
