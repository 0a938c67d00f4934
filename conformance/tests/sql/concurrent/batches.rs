//! Batches with many requests for one row.
//!
//! They are so many that a sort does not keep the order of those that are equal.

use lockapi::queue::{Outcome, Ticket};
use lockapi::suite::id::{ClaimWorker, ClaimedWorker};
use lockapi::suite::lease::{Acquire, Acquired};
use lockapi::suite::limit;
use lockapi::suite::limit::Block;
use lockapi::suite::queue::Settle;

use super::agree;
use super::limits::{By, MINUTE, charge, ensure, look};
use super::queue::{claim, count, push};
use super::sides::{Plans, UNIT, step};

const KEYS: [&str; 2] = ["a", "b"];
const BATCH: &[&str] = &KEYS;
const A: &[&str] = &["a"];
const HOUR: i64 = 60 * UNIT;
/// 2021, in milliseconds.
const EPOCH: i64 = 1_609_459_200_000;

#[test]
fn of_many_requests_for_a_lease_the_first_takes_effect() {
    let many = step(
        |side| {
            let of = |nth: i64| Acquire {
                namespace: side.namespace.clone(),
                key: side.key(KEYS[usize::from(nth % 2 == 0)]),
                slot: 0,
                acquisition: nth,
                ttl: UNIT,
                hold: 0,
                owner: nth.to_string(),
                data: String::new(),
            };
            (1..200).map(of).collect()
        },
        |_, acquired| matches!(acquired, Acquired::Granted(_)).to_string(),
    );
    agree(Plans::Engine, &[&many]);
}

#[test]
fn of_many_claims_the_first_decides_on_the_layout() {
    let many = step(
        |side| {
            let of = |nth: i64| ClaimWorker {
                namespace: side.namespace.clone(),
                name: (nth % 2).to_string(),
                worker_bits: if nth < 2 { 4 } else { 5 },
                sequence_bits: 12,
                epoch: EPOCH,
                token: nth + 1,
                ttl: HOUR,
                reserve: 3_600_000,
                least: 0,
                owner: "owner".to_owned(),
            };
            (0..200).map(of).collect()
        },
        |_, answer| matches!(answer, ClaimedWorker::Granted { .. }).to_string(),
    );
    agree(Plans::Engine, &[&many]);
}

#[test]
fn of_many_blocks_of_a_key_the_last_takes_effect() {
    let many = step(
        |side| {
            let of = |nth: i64| Block {
                namespace: side.namespace.clone(),
                key: side.key(KEYS[usize::from(nth % 2 == 0)]),
                time: nth * MINUTE,
            };
            (1..200).map(of).collect()
        },
        |_, done| done.to_string(),
    );
    agree(Plans::Engine, &[&many, &look()]);
}

#[test]
fn of_many_ends_of_a_reservation_the_first_takes_effect() {
    let many = step(
        |side| {
            let of = |nth: i64| {
                let (key, name) = [("a", "mine"), ("b", "other")][usize::from(nth % 2 == 0)];
                limit::EndReservation {
                    namespace: side.namespace.clone(),
                    key: side.key(key),
                    id: side.given(&format!("reservation {name}")),
                    // Only the first of each gives something back.
                    price: if nth < 2 { MINUTE } else { 0 },
                }
            };
            (0..200).map(of).collect()
        },
        |_, done| done.to_string(),
    );
    let mine = charge(By::Cells, A, Some(("mine", 5)));
    let other = charge(By::Cells, &["b"], Some(("other", 5)));
    agree(
        Plans::Engine,
        &[&ensure(BATCH), &mine, &other, &many, &look()],
    );
}

#[test]
fn of_many_outcomes_of_a_delivery_the_first_takes_effect() {
    let many = step(
        |side| {
            let of = |nth: i64| {
                let job = KEYS[usize::from(nth % 2 == 0)];
                let ticket = Ticket {
                    id: side.given(&format!("job {job}")),
                    token: side.given(&format!("delivery {job}")),
                };
                let outcome = match nth {
                    0 | 1 => Outcome::Release,
                    _ => Outcome::Extend(std::time::Duration::from_mins(5)),
                };
                Settle::new(ticket, &outcome, UNIT).expect("no completion")
            };
            (0..200).map(of).collect()
        },
        |_, settled| format!("{settled:?}"),
    );
    agree(
        Plans::Engine,
        &[&push(&["a", "b"]), &claim(2), &many, &count()],
    );
}
