//! Limits and ids.

use super::*;

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

#[test]
fn generated() {
    assert_eq!(broken(&history([ids(0, &[1, 2]), ids(1, &[3])])), [""; 0]);
    let twice = history([ids(0, &[1, 2]), ids(1, &[2])]);
    assert_eq!(broken(&twice), ["ids are unique"]);
    let falling = history([ids(0, &[2, 1])]);
    assert_eq!(broken(&falling), ["ids of a generator grow"]);
}
