//! Two sessions at the reservations of one limit.

use lockapi::suite::limit::{EndReservation, Expire};

use super::limits::{By, MINUTE, charge, ensure, lock, look, reset, share, take};
use super::sides::{Plans, Side, Step, elapse, number, step};
use super::{Meets, Schedule, agree};

const A: &[&str] = &["a"];
const BATCH: &[&str] = &["a", "b"];

/// Ends reservations of keys.
pub(super) fn settle(wants: &'static [(&'static str, &'static str)]) -> Step {
    let batch = |side: &Side| {
        let of = |(key, name): &(&str, &str)| EndReservation {
            namespace: side.namespace.clone(),
            key: side.key(key),
            id: side.given(&format!("reservation {name}")),
            price: MINUTE,
        };
        wants.iter().map(of).collect()
    };
    step(batch, |_, done| done.to_string())
}

pub(super) fn expire(keys: &'static [&'static str]) -> Step {
    let batch = |side: &Side| {
        let of = |key: &&str| Expire {
            namespace: side.namespace.clone(),
            key: side.key(key),
        };
        keys.iter().map(of).collect()
    };
    step(batch, |_, done| done.to_string())
}

/// How many reservations there are.
fn reservations(expected: i64) -> Step {
    let count = "SELECT count(*) FROM lockapi.rate_reservation WHERE namespace = $n";
    number(count, expected)
}

const MINE: &[(&str, &str)] = &[("a", "mine")];

#[test]
fn a_reservation_ends_once() {
    for quota in [By::Cells, By::Window] {
        let before = [&ensure(BATCH), &charge(quota, A, Some(("mine", 3)))];
        let schedule = Schedule::new(&before, &settle(MINE), &settle(MINE), Meets::Waits);
        schedule.then(&look()).then(&reservations(0)).run();
        let schedule = Schedule::new(&before, &reset(A), &settle(MINE), Meets::Waits);
        schedule.then(&look()).then(&reservations(0)).run();
        let before = [before[0], before[1], &elapse(4)];
        for first in [settle(MINE), expire(A)] {
            for second in [settle(MINE), expire(BATCH)] {
                let schedule = Schedule::new(&before, &first, &second, Meets::Waits);
                schedule.then(&look()).then(&reservations(0)).run();
            }
        }
    }
}

#[test]
fn the_end_of_a_reservation_waits_for_what_changes_the_row() {
    for quota in [By::Cells, By::Window] {
        for first in [
            take(A),
            charge(quota, BATCH, None),
            charge(quota, A, Some(("other", 5))),
            lock(),
        ] {
            let before = [&ensure(BATCH), &charge(quota, A, Some(("mine", 3)))];
            let schedule = Schedule::new(&before, &first, &settle(MINE), Meets::Waits);
            schedule.then(&look()).run();
            let before = [before[0], before[1], &charge(quota, A, Some(("more", 9)))];
            let schedule = Schedule::new(&before, &first, &settle(MINE), Meets::Waits);
            schedule.then(&look()).run();
        }
    }
}

/// It waits before it has anything of the row.
#[test]
fn the_end_of_a_reservation_does_not_hinder_who_looked_at_the_row() {
    for quota in [By::Cells, By::Window] {
        let mine = charge(quota, A, Some(("mine", 3)));
        for before in [
            &[&ensure(BATCH), &mine] as &[&Step],
            &[&ensure(BATCH), &mine, &elapse(4)],
        ] {
            for second in [settle(MINE), expire(BATCH)] {
                let schedule = Schedule::new(before, &settle(MINE), &second, Meets::Waits);
                schedule.looked(&share()).then(&look()).run();
            }
        }
    }
}

#[test]
fn what_is_given_back_counts_in_the_window_of_the_locked_row() {
    // The window begins anew with the charge that the end waits for.
    let before = [
        &ensure(BATCH),
        &charge(By::Window, A, Some(("mine", 9))),
        &charge(By::Window, A, None),
        &elapse(5),
    ];
    let first = charge(By::Window, BATCH, None);
    let schedule = Schedule::new(&before, &first, &settle(MINE), Meets::Waits);
    schedule.then(&look()).run();
    let before = [
        &ensure(BATCH),
        &charge(By::Window, A, Some(("mine", 2))),
        &charge(By::Window, A, Some(("more", 9))),
        &elapse(5),
    ];
    // Nothing can be charged before what has expired is ended, so somebody has the row only.
    for second in [settle(MINE), expire(A)] {
        let schedule = Schedule::new(&before, &lock(), &second, Meets::Waits);
        schedule.then(&look()).then(&reservations(1)).run();
    }
}

/// Both end at once.
#[test]
fn what_is_reserved_of_a_window_is_no_part_of_what_has_been_replenished() {
    let one = charge(By::Cells, A, None);
    let [cells, window] = [(By::Cells, "mine"), (By::Window, "more")]
        .map(|(by, name)| charge(by, A, Some((name, 2))));
    let before = [&ensure(A), &one, &one, &one, &cells, &window, &elapse(3)];
    for ends in [expire(A), settle(&[("a", "mine"), ("a", "more")])] {
        agree(Plans::Engine, &[&before[..], &[&ends, &look()]].concat());
    }
}

#[test]
fn a_key_is_reset_with_what_is_reserved_meanwhile() {
    let before = [&ensure(BATCH), &charge(By::Cells, A, Some(("mine", 3)))];
    for first in [
        take(A),
        settle(MINE),
        charge(By::Cells, A, Some(("other", 5))),
        lock(),
    ] {
        let schedule = Schedule::new(&before, &first, &reset(BATCH), Meets::Waits);
        schedule.then(&look()).then(&reservations(0)).run();
    }
}

#[test]
fn a_reservation_that_is_made_meanwhile_keeps_the_key_due() {
    let before = [
        &ensure(BATCH),
        &charge(By::Cells, A, Some(("mine", 3))),
        &charge(By::Cells, A, Some(("more", 9))),
    ];
    let first = charge(By::Cells, A, Some(("other", 5)));
    let schedule = Schedule::new(&before, &first, &settle(MINE), Meets::Waits);
    schedule
        .then(&elapse(4))
        .then(&expire(A))
        .then(&look())
        .run();
    let schedule = Schedule::new(&before, &first, &expire(A), Meets::Waits);
    schedule.then(&look()).run();
}
