//! Two sessions at the numbers of one name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lockapi::suite::id::{ClaimWorker, ClaimedWorker, NextBlock, ReleaseWorker, RenewWorker};

use super::sides::{Plans, Side, Step, UNIT, elapse_ids, minutes, number, sql, step, url};
use super::{Meets, Running, Schedule, agree};

const HOUR: i64 = 60 * UNIT;
/// 2021, in milliseconds.
const EPOCH: i64 = 1_609_459_200_000;

/// Claims a number by a token; there are as many as so many bits can tell.
fn claim(bits: i64, token: i64) -> Step {
    Arc::new(move |side: &mut Side| {
        let least = side.now() / 1000;
        let claim = ClaimWorker {
            namespace: side.namespace.clone(),
            name: "it".to_owned(),
            worker_bits: bits,
            sequence_bits: 12,
            epoch: EPOCH,
            token,
            ttl: HOUR,
            reserve: 3_600_000,
            least,
            owner: "owner".to_owned(),
        };
        match side.perform(&[claim]).remove(0) {
            ClaimedWorker::Granted {
                worker, start, now, ..
            } => {
                side.give(&format!("worker {token}"), worker);
                format!("{worker} from {}", minutes(start * 1000 - now))
            }
            other => format!("{other:?}"),
        }
    })
}

/// Claims a number of each of these names.
pub(super) fn claim_all(names: &'static [&'static str]) -> Step {
    let batch = |side: &Side| {
        let of = |name: &&str| ClaimWorker {
            namespace: side.namespace.clone(),
            name: (*name).to_owned(),
            worker_bits: 4,
            sequence_bits: 12,
            epoch: EPOCH,
            token: fastrand::i64(1..),
            ttl: HOUR,
            reserve: 3_600_000,
            least: 0,
            owner: "owner".to_owned(),
        };
        names.iter().map(of).collect()
    };
    step(batch, |_, answer| match answer {
        ClaimedWorker::Granted { worker, .. } => worker.to_string(),
        other => format!("{other:?}"),
    })
}

/// A claim of a number of `it`, beside one of a name that somebody else is about to create.
fn claim_beside(bits: i64, token: i64) -> Step {
    let batch = move |side: &Side| {
        let of = |(name, bits, token): (&str, i64, i64)| ClaimWorker {
            namespace: side.namespace.clone(),
            name: name.to_owned(),
            worker_bits: bits,
            sequence_bits: 12,
            epoch: EPOCH,
            token,
            ttl: HOUR,
            reserve: 3_600_000,
            least: 0,
            owner: "owner".to_owned(),
        };
        vec![of(("it", bits, token)), of(("new", 2, 99))]
    };
    step(batch, |_, answer| match answer {
        ClaimedWorker::Granted { worker, .. } => worker.to_string(),
        other => format!("{other:?}"),
    })
}

/// Creates that name.
pub(super) const NEW_NAME: &str = "
    INSERT INTO lockapi.id_space (namespace, name, worker_bits, sequence_bits, epoch)
    VALUES ($n, 'new', 2, 12, 1609459200000)";

/// Claims that change rows after they have waited for the name, each with what is done before.
pub(super) fn claims_beside() -> [(Vec<Step>, Step); 4] {
    let one = claim(2, 1);
    [
        (vec![one.clone()], claim_beside(2, 1)),
        (vec![one.clone(), release(1)], claim_beside(2, 2)),
        (vec![one.clone()], claim_beside(2, 2)),
        (vec![one, elapse_ids(-30)], claim_beside(2, 2)),
    ]
}

fn renew(token: i64) -> Step {
    Arc::new(move |side: &mut Side| {
        let least = side.now() / 1000;
        let renew = RenewWorker {
            namespace: side.namespace.clone(),
            name: "it".to_owned(),
            worker: side.given(&format!("worker {token}")),
            token,
            ttl: 2 * HOUR,
            reserve: 7_200_000,
            least,
        };
        let renewed = side.perform(&[renew]).remove(0);
        let floor = renewed
            .floor
            .map(|floor| minutes(floor * 1000 - renewed.now));
        format!("renewed to {floor:?}")
    })
}

fn release(token: i64) -> Step {
    Arc::new(move |side: &mut Side| {
        let floor = side.now() / 1000 + 600_000;
        let release = ReleaseWorker {
            namespace: side.namespace.clone(),
            name: "it".to_owned(),
            worker: side.given(&format!("worker {token}")),
            token,
            floor,
        };
        format!("released {:?}", side.perform(&[release]))
    })
}

/// Allocates blocks of ten ids.
pub(super) fn blocks(names: &'static [&'static str]) -> Step {
    let batch = |side: &Side| {
        let of = |name: &&str| NextBlock {
            namespace: side.namespace.clone(),
            name: (*name).to_owned(),
            size: 10,
        };
        names.iter().map(of).collect()
    };
    step(batch, |_, first| format!("{first:?}"))
}

const LOCK: &str = "SELECT FROM lockapi.id_worker WHERE namespace = $n FOR UPDATE";
/// As somebody has it who does not change it.
const SHARE: &str = "SELECT FROM lockapi.id_worker WHERE namespace = $n FOR SHARE";

#[test]
fn a_free_number_goes_to_one_of_two() {
    for first in [claim(0, 2), sql(LOCK), sql(SHARE)] {
        // The only number is free: given back, or not renewed.
        let given_back = [&claim(0, 1), &release(1)];
        let schedule = Schedule::new(&given_back, &first, &claim(0, 3), Meets::Skips("Full"));
        schedule.then(&claim(0, 4)).run();
        let ended = [&claim(0, 1), &elapse_ids(90)];
        let schedule = Schedule::new(&ended, &first, &claim(0, 3), Meets::Skips("Full"));
        schedule.then(&renew(1)).then(&claim(0, 4)).run();
    }
    // Another number is new.
    let before = [&claim(2, 1), &release(1)];
    let schedule = Schedule::new(&before, &claim(2, 2), &claim(2, 3), Meets::Passes);
    schedule.only_if_committed().then(&claim(2, 4)).run();
}

#[test]
fn a_repeated_claim_skips_its_number_while_it_is_locked() {
    for first in [renew(1), release(1), sql(LOCK), sql(SHARE)] {
        let meets = Meets::Skips("Full");
        let schedule = Schedule::new(&[&claim(0, 1)], &first, &claim(0, 1), meets);
        schedule.then(&renew(1)).run();
    }
}

#[test]
fn a_claim_after_the_clock_was_set_back_skips_numbers_that_others_have() {
    let before = [&claim(2, 1), &elapse_ids(-30)];
    for first in [renew(1), sql(LOCK), sql(SHARE)] {
        let schedule = Schedule::new(&before, &first, &claim(2, 2), Meets::Passes);
        let schedule = schedule.only_if_committed().then(&claim(2, 3));
        schedule.then(&renew(1)).run();
    }
}

#[test]
fn a_number_or_name_that_another_creates_is_waited_for() {
    let meets = Meets::WaitsAndRetries("Busy");
    let schedule = Schedule::new(&[], &claim(2, 1), &claim(2, 2), meets);
    schedule.then(&claim(2, 3)).run();
    let schedule = Schedule::new(&[], &claim(2, 1), &claim(3, 2), meets);
    schedule.then(&claim(2, 3)).run();
    let schedule = Schedule::new(&[&claim(2, 1)], &claim(2, 2), &claim(2, 3), meets);
    schedule.then(&claim(2, 4)).run();
}

#[test]
fn renewals_and_releases_wait_for_what_changes_the_number() {
    for first in [renew(1), release(1), sql(LOCK), sql(SHARE)] {
        for second in [renew(1), release(1)] {
            let before = [&claim(0, 1)];
            let schedule = Schedule::new(&before, &first, &second, Meets::Waits);
            schedule.then(&claim(0, 2)).run();
        }
    }
}

#[test]
fn a_late_renewal_waits_for_the_claim_that_takes_the_number_over() {
    for second in [renew(1), release(1)] {
        let before = [&claim(0, 1), &elapse_ids(90)];
        let schedule = Schedule::new(&before, &claim(0, 2), &second, Meets::Waits);
        schedule.then(&renew(2)).then(&claim(0, 3)).run();
    }
}

#[test]
fn no_id_is_allocated_twice() {
    let both = blocks(&["a", "b", "a"]);
    for before in [&[] as &[&Step], &[&blocks(&["a", "b"])]] {
        let schedule = Schedule::new(before, &blocks(&["a"]), &both, Meets::Waits);
        schedule.then(&both).run();
        let schedule = Schedule::new(before, &both, &blocks(&["b"]), Meets::Waits);
        schedule.then(&both).run();
    }
}

#[test]
fn a_number_that_ends_while_another_name_is_awaited_is_free() {
    const SOON: &str = "
        UPDATE lockapi.id_worker SET expires_at = pg_catalog.clock_timestamp() + interval '0.5 s'
         WHERE namespace = $n";
    let [mut observer, mut first, mut second] =
        [0, 1, 2].map(|_| Side::server(url(), Plans::Engine));
    let namespace = format!("n{:016x}", fastrand::u64(..));
    for side in [&mut observer, &mut first, &mut second] {
        side.namespace.clone_from(&namespace);
    }
    let mut given = BTreeMap::new();
    for step in [claim(0, 1), sql(SOON)] {
        observer.run(&step, &mut given);
    }
    first.script("BEGIN");
    first.run(&sql(NEW_NAME), &mut given);
    let second = Running::start(second, &claim_beside(0, 2), given.clone());
    second.waits_for(first.pid(), &mut observer);
    thread::sleep(Duration::from_millis(600));
    first.script("COMMIT");
    let (_, answer) = second.answer(&mut given);
    assert_eq!(answer, "0; Busy");
}

/// The clock was set back since somebody created the name.
#[test]
fn no_number_is_claimed_before_the_epoch_of_its_name() {
    const LATER: i64 = 4_102_444_800_000;
    let created = sql("
        INSERT INTO lockapi.id_space (namespace, name, worker_bits, sequence_bits, epoch)
        VALUES ($n, 'it', 2, 12, 4102444800000)");
    let early = step(
        |side| {
            vec![ClaimWorker {
                namespace: side.namespace.clone(),
                name: "it".to_owned(),
                worker_bits: 2,
                sequence_bits: 12,
                epoch: LATER,
                token: 1,
                ttl: HOUR,
                reserve: 3_600_000,
                least: 0,
                owner: "owner".to_owned(),
            }]
        },
        |_, answer| matches!(answer, ClaimedWorker::TooEarly(_)).to_string(),
    );
    agree(Plans::Engine, &[&created, &early]);
}

/// Claims several numbers of `it` by these tokens at once.
fn claim_together(tokens: &'static [i64]) -> Step {
    let batch = move |side: &Side| {
        let of = |token: &i64| ClaimWorker {
            namespace: side.namespace.clone(),
            name: "it".to_owned(),
            worker_bits: 2,
            sequence_bits: 12,
            epoch: EPOCH,
            token: *token,
            ttl: HOUR,
            reserve: 3_600_000,
            least: 0,
            owner: "owner".to_owned(),
        };
        tokens.iter().map(of).collect()
    };
    step(batch, |_, answer| match answer {
        ClaimedWorker::Granted { worker, .. } => worker.to_string(),
        other => format!("{other:?}"),
    })
}

#[test]
fn a_claim_leaves_the_end_of_numbers_that_others_have() {
    let [one, two, three] = [1, 2, 3].map(|token| claim(2, token));
    let (half, rest) = (elapse_ids(30), elapse_ids(40));
    agree(Plans::Engine, &[&one, &half, &two, &rest, &three]);
}

#[test]
fn after_the_clock_was_set_back_a_claim_leaves_what_is_of_others_and_what_it_repeats() {
    const AHEAD: &str = "SELECT count(*) FROM lockapi.id_worker
                          WHERE namespace = $n || ' too' AND renewed_at > now() + interval '10 min'";
    let others = sql(
        "INSERT INTO lockapi.id_space (namespace, name, worker_bits, sequence_bits, epoch)
         SELECT namespace || ' too', name, worker_bits, sequence_bits, epoch FROM lockapi.id_space WHERE namespace = $n;
         INSERT INTO lockapi.id_worker (namespace, name, worker, token, floor, owner, claimed_at, renewed_at, expires_at)
         SELECT namespace || ' too', name, worker, token, floor, owner, claimed_at, renewed_at, expires_at
           FROM lockapi.id_worker WHERE namespace = $n",
    );
    let (one, back, ahead) = (claim(2, 1), elapse_ids(-30), number(AHEAD, 1));
    let (both, other) = (claim_together(&[1, 2]), claim(2, 2));
    for claims in [&both, &other] {
        let steps = [&one, &back, &others, claims, &ahead, &renew(1)];
        agree(Plans::Engine, &steps);
    }
}
