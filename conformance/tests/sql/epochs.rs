//! Statements in an epoch that has just begun, in transactions that are rolled back: the epoch is that of
//! the whole database.

use lockapi::driver::{Connection, Script};
use lockapi::queue::{DeliveryState, Headers, ResultValue, Settled};
use lockapi::suite::id::{ClaimWorker, ClaimedWorker, RenewWorker};
use lockapi::suite::lease::{Acquire, Acquired, Release};
use lockapi::suite::queue::{
    Ack, AckWithResult, CompleteAndClaim, FOR_EVER, NewJob, Push, ReadDeliveryState, Settle,
};

use crate::connection::{Library, LibraryConnection};

const BEGIN: Script = Script::Begin("BEGIN");
const NEW_EPOCH: Script = Script::Run(
    "UPDATE lockapi.epoch SET number = number + 40000, begun_at = pg_catalog.clock_timestamp(), waits_from = pg_catalog.clock_timestamp()",
);

#[test]
fn number_whose_claim_ended_in_an_earlier_epoch_is_not_renewed() {
    let (url, _runtime) = crate::server();
    let mut link = LibraryConnection::connect(Library::Sync, &url);
    let namespace = format!("n{:016x}", fastrand::u64(..));
    // It ends at once, or in an hour.
    for (name, ttl, renewed) in [("ended", 0, false), ("held", 3_600_000_000, true)] {
        let claim = ClaimWorker {
            namespace: namespace.clone(),
            name: name.to_owned(),
            worker_bits: 10,
            sequence_bits: 12,
            epoch: 1_609_459_200_000,
            token: 7,
            ttl,
            reserve: 3_000,
            least: 0,
            owner: String::new(),
        };
        let claimed = pollster::block_on(link.perform(&[claim])).expect("answered");
        let [ClaimedWorker::Granted { worker, start, .. }] = claimed[..] else {
            panic!("{claimed:?}");
        };
        let renew = |link: &mut LibraryConnection| {
            let renew = RenewWorker {
                namespace: namespace.clone(),
                name: name.to_owned(),
                worker,
                token: 7,
                ttl,
                reserve: 3_000,
                least: 0,
            };
            pollster::block_on(link.perform(&[renew])).expect("answered")[0]
                .floor
                .is_some()
        };
        let script = |link: &mut LibraryConnection, script| {
            pollster::block_on(link.script(script)).expect("done");
        };
        script(&mut link, BEGIN);
        script(&mut link, NEW_EPOCH);
        assert_eq!(renew(&mut link), renewed, "{name}");
        script(&mut link, Script::Rollback);
        assert!(renew(&mut link), "{name}: in its own epoch");
        // Another starts above every floor that may have been lost.
        script(&mut link, BEGIN);
        script(&mut link, NEW_EPOCH);
        let other = ClaimWorker {
            namespace: namespace.clone(),
            name: name.to_owned(),
            worker_bits: 10,
            sequence_bits: 12,
            epoch: 1_609_459_200_000,
            token: 8,
            ttl,
            reserve: 3_000,
            least: 0,
            owner: String::new(),
        };
        let claimed = pollster::block_on(link.perform(&[other])).expect("answered");
        let [ClaimedWorker::Granted { start: later, .. }] = claimed[..] else {
            panic!("{claimed:?}");
        };
        assert!(later >= start + 90_000, "{name}: {later} after {start}");
        script(&mut link, Script::Rollback);
    }
}

/// Whoever is refused is told until when: of two times, the later.
#[test]
fn a_lease_of_an_earlier_epoch_is_told_to_be_held_until_the_later_time() {
    const HOUR: i64 = 3_600_000_000;
    let (url, _runtime) = crate::server();
    let mut link = LibraryConnection::connect(Library::Sync, &url);
    let namespace = format!("n{:016x}", fastrand::u64(..));
    let acquire = |key: &str, acquisition, ttl| Acquire {
        namespace: namespace.clone(),
        key: key.to_owned(),
        slot: 0,
        acquisition,
        ttl,
        hold: 0,
        owner: String::new(),
        data: String::new(),
    };
    let script = |link: &mut LibraryConnection, script| {
        pollster::block_on(link.script(script)).expect("done");
    };
    let perform = |link: &mut LibraryConnection, batch: &[Acquire]| {
        pollster::block_on(link.perform(batch)).expect("answered")
    };
    // Its own time to live, that of who asks, and the longer one; whether it was released before.
    for (had, wanted, released, waits) in [
        (HOUR, 2 * HOUR, false, 2 * HOUR),
        (2 * HOUR, HOUR, false, 2 * HOUR),
        (2 * HOUR, HOUR, true, HOUR),
    ] {
        let key = format!("{had} {wanted} {released}");
        let granted = perform(&mut link, &[acquire(&key, 1, had)]);
        let [Acquired::Granted(fence)] = granted[..] else {
            panic!("{granted:?}");
        };
        if released {
            let release = Release {
                namespace: namespace.clone(),
                key: key.clone(),
                slots: [0].into(),
                fence,
            };
            pollster::block_on(link.perform(&[release])).expect("answered");
        }
        script(&mut link, BEGIN);
        script(&mut link, NEW_EPOCH);
        let alone = perform(&mut link, &[acquire(&key, 2, wanted)]);
        let beside = [acquire(&key, 3, wanted), acquire("another", 4, wanted)];
        let beside = perform(&mut link, &beside);
        for answer in [&alone[0], &beside[0]] {
            let Acquired::Held(held) = *answer else {
                panic!("{key}: {answer:?}");
            };
            let late = waits - held;
            assert!((0..60_000_000).contains(&late), "{key}: {late} us less");
        }
        script(&mut link, Script::Rollback);
    }
}

/// The server may have lost a later delivery of the job, or its end.
#[test]
fn f04_a_delivery_of_an_earlier_epoch_changes_nothing() {
    let (url, _runtime) = crate::server();
    let mut link = LibraryConnection::connect(Library::Sync, &url);
    let namespace = format!("n{:016x}", fastrand::u64(..));
    let push = Push {
        namespace: namespace.clone(),
        queue: "work".to_owned(),
        jobs: vec![NewJob {
            group: String::new(),
            headers: Headers::default(),
            name: "job".to_owned(),
            payload: "{}".to_owned(),
            at: 0,
            delay: 0,
            priority: 0,
            max_attempts: 25,
            ttl: 0,
        }],
        topic: None,
    };
    let claim = |acks: &[Ack]| CompleteAndClaim {
        acks: acks.to_vec(),
        namespace: namespace.clone(),
        queue: "work".to_owned(),
        most: 1,
        lease: 3_600_000_000,
        priorities: vec![(0, (0, 0))],
        worker: String::new(),
        claim: fastrand::i64(1..),
        lost: Vec::new(),
        names: Vec::new(),
        bytes: 1000,
        keep_dead: FOR_EVER,
        limited: false,
    };
    pollster::block_on(link.perform(&[push])).expect("answered");
    let mut answer = pollster::block_on(link.perform(&[claim(&[])])).expect("answered");
    let ticket = answer[0].claimed.remove(0).ticket;
    let ack = Ack { ticket, keep: -1 };
    let with_result = || AckWithResult {
        ack,
        result: ResultValue::new(&1).expect("a result"),
        retention: 1_000_000,
    };
    let settle = |kind| Settle {
        ticket,
        kind,
        time: 1_000_000,
        error: String::new(),
        keep: FOR_EVER,
    };
    let script = |link: &mut LibraryConnection, script| {
        pollster::block_on(link.script(script)).expect("done");
    };

    script(&mut link, BEGIN);
    script(&mut link, NEW_EPOCH);
    for kind in 0..=6 {
        let settled = pollster::block_on(link.perform(&[settle(kind)])).expect("answered");
        assert!(
            matches!(settled[..], [Settled::Lost]),
            "{kind}: {settled:?}"
        );
    }
    let state = ReadDeliveryState { ticket };
    let seen = pollster::block_on(link.perform(&[state])).expect("answered");
    assert_eq!(seen, [DeliveryState::Superseded]);
    let acked = pollster::block_on(link.perform(&[ack])).expect("answered");
    assert_eq!(acked, [false], "alone");
    let acked = pollster::block_on(link.perform(&[with_result()])).expect("answered");
    assert_eq!(acked, [false], "with a result");
    let answer = pollster::block_on(link.perform(&[claim(&[ack])])).expect("answered");
    assert_eq!(answer[0].acked, [false], "with a claim");
    assert_eq!(answer[0].claimed.len(), 0, "its lease goes on");
    script(&mut link, Script::Rollback);

    // The row is that of the server before, and nobody has entered an epoch of this one.
    let promoted = Script::Run("UPDATE lockapi.epoch SET timeline = timeline + 1");
    script(&mut link, BEGIN);
    script(&mut link, promoted);
    let acked = pollster::block_on(link.perform(&[ack])).expect("answered");
    assert_eq!(acked, [false], "before the epoch begins");
    let acked = pollster::block_on(link.perform(&[with_result()])).expect("answered");
    assert_eq!(acked, [false], "before the epoch begins, with a result");
    script(&mut link, Script::Rollback);
    // Which timeline it is on is not known.
    script(&mut link, BEGIN);
    script(
        &mut link,
        Script::Run("UPDATE lockapi.epoch SET timeline = -1"),
    );
    script(&mut link, Script::Run("SAVEPOINT before"));
    let acked = pollster::block_on(link.perform(&[with_result()])).expect("answered");
    assert_eq!(acked, [true], "without timelines, with a result");
    script(&mut link, Script::Run("ROLLBACK TO SAVEPOINT before"));
    let acked = pollster::block_on(link.perform(&[ack])).expect("answered");
    assert_eq!(acked, [true], "without timelines");
    script(&mut link, Script::Rollback);

    let seen = pollster::block_on(link.perform(&[ReadDeliveryState { ticket }]));
    assert_eq!(seen.expect("answered"), [DeliveryState::Current]);
    let settled = pollster::block_on(link.perform(&[settle(5)])).expect("answered");
    assert!(matches!(settled[..], [Settled::Done]), "{settled:?}");
    let acked = pollster::block_on(link.perform(&[ack])).expect("answered");
    assert_eq!(acked, [true], "in its own epoch");
}
