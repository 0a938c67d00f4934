//! Registers and counters.

use super::*;

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

/// Nor under a mutex, once it was granted in a session that was there: under that token something was written, also later.
#[test]
fn writes_after_another_grant_of_a_mutex() {
    let written = |granted, second: Option<(Nanos, Nanos)>| {
        let of_mutex = |mut call: Call| {
            if let Op::Write { register, .. } = &mut call.op {
                *register = "Mutex a".to_owned();
            }
            call
        };
        let (one, other) = (1 << 10, 2 << 10);
        let mut calls = vec![
            of_mutex(write(one, 1, (5, 6), Answer::Number(1))),
            hold(1, Kind::Mutex, other, (granted, granted)),
        ];
        let mut writes = vec![(one, 1)];
        if let Some(times) = second {
            let call = write(other, 2, times, Answer::Number(2));
            calls.push(of_mutex(call));
            writes.push((other, 2));
        }
        let mut history = accepted(calls, &writes);
        let of_lease = history.tables.accepted.remove("Lease a");
        let writes = of_lease.expect("its writes");
        history.tables.accepted.insert("Mutex a".to_owned(), writes);
        broken(&history)
    };
    assert_eq!(written(4, Some((7, 8))), ["no stale write is accepted"]);
    assert_eq!(written(5, Some((7, 8))), [""; 0]);
    assert_eq!(written(4, None), [""; 0]);
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
