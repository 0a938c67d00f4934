//! Two sessions at the slots of one key.

use std::sync::Arc;

use lockapi::suite::lease::{Abandon, Acquire, Release, Take, Taken};

use super::sides::{Plans, Side, Step, UNIT, elapse, minutes, sql, step};
use super::{Meets, Schedule, agree};

/// Takes slots of a key: how many there are, how many are wanted, the number of the acquisition.
pub(super) fn take(permits: i64, count: i64, acquisition: i64) -> Step {
    take_for(1, permits, count, acquisition)
}

/// For so many minutes.
fn take_for(minutes_of: i64, permits: i64, count: i64, acquisition: i64) -> Step {
    Arc::new(move |side: &mut Side| {
        let take = Take {
            namespace: side.namespace.clone(),
            key: side.key("pool"),
            permits,
            count,
            acquisition,
            ttl: minutes_of * UNIT,
            hold: 0,
            owner: "owner".to_owned(),
            data: String::new(),
        };
        match side.perform(&[take]).remove(0) {
            Taken::Granted { fence, slots } => {
                let token = side.larger("token", &acquisition.to_string(), fence);
                format!("{slots:?} {token}")
            }
            Taken::Refused { again, held_for } => {
                format!("refused {again} {}", minutes(held_for))
            }
        }
    })
}

fn release(slot: i64, acquisition: i64) -> Step {
    let batch = move |side: &Side| {
        vec![Release {
            namespace: side.namespace.clone(),
            key: side.key("pool"),
            slots: [slot].into(),
            fence: side.given(&format!("token {acquisition}")),
        }]
    };
    step(batch, |_, done| done.to_string())
}

/// Acquires slots by one number, in this order.
pub(super) fn acquire(slots: &'static [i64]) -> Step {
    Arc::new(move |side: &mut Side| {
        for slot in slots {
            let acquire = Acquire {
                namespace: side.namespace.clone(),
                key: side.key("pool"),
                slot: *slot,
                acquisition: 1,
                ttl: UNIT,
                hold: 0,
                owner: "owner".to_owned(),
                data: String::new(),
            };
            side.perform(&[acquire]);
        }
        String::new()
    })
}

/// Gives back what was acquired by that number.
pub(super) fn abandon() -> Step {
    let batch = |side: &Side| {
        vec![Abandon {
            namespace: side.namespace.clone(),
            key: side.key("pool"),
            first: 1,
            last: 3,
            acquisition: 1,
            granted: 0,
        }]
    };
    step(batch, |_, found| found.to_string())
}

/// As somebody who takes it has it.
const LOCK_FIRST: &str = "SELECT FROM lockapi.lease WHERE namespace = $n AND slot = 1 FOR UPDATE";
/// As a transaction of its holder has it.
const SHARE_FIRST: &str =
    "SELECT FROM lockapi.lease WHERE namespace = $n AND slot = 1 FOR KEY SHARE";

#[test]
fn slots_that_another_takes_are_skipped() {
    // The rows have to be made first.
    let made = take(2, 2, 1);
    let one = take(2, 1, 1);
    let before = [&made, &one];
    let schedule = Schedule::new(&before, &take(2, 1, 2), &take(2, 1, 3), {
        Meets::Skips("refused false 1")
    });
    schedule.then(&take(2, 1, 4)).run();
    // The next one is free.
    let schedule = Schedule::new(&[&made], &take(2, 1, 2), &take(2, 1, 3), Meets::Passes);
    schedule.only_if_committed().then(&take(2, 1, 4)).run();
    for locked in [sql(LOCK_FIRST), sql(SHARE_FIRST)] {
        let meets = Meets::Skips("refused false 0");
        let schedule = Schedule::new(&[&made], &locked, &take(2, 2, 3), meets);
        schedule.then(&take(2, 1, 4)).run();
    }
}

#[test]
fn slots_of_an_ended_acquisition_go_to_one_of_two() {
    let before = [&take(1, 1, 1), &take(1, 1, 1), &elapse(2)];
    let schedule = Schedule::new(&before, &take(1, 1, 2), &take(1, 1, 3), {
        Meets::Skips("refused false 0")
    });
    schedule.then(&take(1, 1, 4)).run();
}

#[test]
fn a_repeated_request_skips_its_slots_while_they_are_locked() {
    let before = [&take(1, 1, 1), &take(1, 1, 1)];
    for first in [sql(LOCK_FIRST), sql(SHARE_FIRST), release(1, 1)] {
        let meets = Meets::Skips("refused false 1");
        let schedule = Schedule::new(&before, &first, &take(1, 1, 1), meets);
        schedule.then(&take(1, 1, 2)).run();
    }
}

#[test]
fn slots_that_another_creates_are_waited_for() {
    // Both answer that it has to be tried again.
    let schedule = Schedule::new(&[], &take(2, 1, 1), &take(2, 1, 2), {
        Meets::WaitsAndRetries("refused true 0")
    });
    schedule.then(&take(2, 1, 3)).run();
}

/// The lease of the key, and the permits of another namespace, are others.
#[test]
fn who_is_refused_a_permit_is_told_when_one_of_the_key_ends() {
    let others = sql("
        INSERT INTO lockapi.lease (namespace, key, slot, fence, acquisition, owner, data, acquired_at, renewed_at, expires_at)
        SELECT $n || ' too', $n || ' pool', slot, 7, 9, '', '', now(), now(), now() + interval '2 min'
          FROM generate_series(1, 2) AS slot");
    let steps = [
        &take(2, 2, 1),
        &take_for(9, 2, 1, 1),
        &take_for(5, 2, 1, 2),
        &acquire(&[0]),
        &others,
        &take(2, 1, 3),
        &elapse(6),
        &take(2, 2, 4),
        &take(2, 1, 5),
    ];
    agree(Plans::Engine, &steps);
}
