//! Statements in an epoch that has just begun, in transactions that are rolled back: the epoch is that of
//! the whole database.

use lockapi::driver::{Connection, Script};
use lockapi::queue::{DeliveryState, Headers, ResultValue, Settled};
use lockapi::suite::id::{ClaimWorker, ClaimedWorker, RenewWorker};
use lockapi::suite::lease::{Acquire, Acquired, Release, Sweep, Take, Taken};
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

/// What is asked for in three ways: alone, beside another lease, and as a permit.
const WAYS: [&str; 3] = ["alone", "beside", "as a permit"];

/// How much longer the slot 1 of this key is held, if it is not given, in microseconds.
fn ask(link: &mut LibraryConnection, way: &str, lease: &Acquire) -> Option<i64> {
    let mut acquire = |batch: &[Acquire]| {
        let mut answers = pollster::block_on(link.perform(batch)).expect("answered");
        match answers.remove(0) {
            Acquired::Granted(_) => None,
            Acquired::Held(left) => Some(left),
        }
    };
    match way {
        "alone" => return acquire(std::slice::from_ref(lease)),
        "beside" => {
            let other = Acquire {
                key: format!("{} too", lease.key),
                acquisition: lease.acquisition + 1,
                ..lease.clone()
            };
            return acquire(&[lease.clone(), other]);
        }
        _ => {}
    }
    let take = Take {
        namespace: lease.namespace.clone(),
        key: lease.key.clone(),
        permits: 1,
        count: 1,
        acquisition: lease.acquisition,
        ttl: lease.ttl,
        hold: lease.hold,
        owner: lease.owner.clone(),
        data: lease.data.clone(),
    };
    let mut answers = pollster::block_on(link.perform(&[take])).expect("answered");
    match answers.remove(0) {
        Taken::Granted { .. } => None,
        Taken::Refused { held_for, .. } => Some(held_for),
    }
}

/// Rows are made where they can be used.
#[test]
fn permits_without_rows_are_refused_at_once_while_an_epoch_is_young() {
    const MINUTE: i64 = 60_000_000;
    const LATER: Script =
        Script::Run("UPDATE lockapi.epoch SET waits_from = waits_from - interval '90 s'");
    let (url, _runtime) = crate::server();
    let mut link = LibraryConnection::connect(Library::Sync, &url);
    let namespace = format!("n{:016x}", fastrand::u64(..));
    let take = |ttl, acquisition| Take {
        namespace: namespace.clone(),
        key: "wide".to_owned(),
        permits: 1000,
        count: 1,
        acquisition,
        ttl,
        hold: 0,
        owner: String::new(),
        data: String::new(),
    };
    for script in [BEGIN, NEW_EPOCH] {
        pollster::block_on(link.script(script)).expect("done");
    }
    let batch = [take(MINUTE, 1), take(2 * MINUTE, 2)];
    let answers = pollster::block_on(link.perform(&batch)).expect("answered");
    for (answer, ttl) in answers.iter().zip([MINUTE, 2 * MINUTE]) {
        let Taken::Refused { again, held_for } = answer else {
            panic!("{answer:?}");
        };
        assert!(!again);
        assert!((ttl - MINUTE / 2..=ttl).contains(held_for), "{held_for}");
    }
    pollster::block_on(link.script(LATER)).expect("done");
    let mut alone = |ttl, acquisition| {
        let answers = pollster::block_on(link.perform(&[take(ttl, acquisition)]));
        answers.expect("answered").remove(0)
    };
    let held = alone(2 * MINUTE, 3);
    assert!(
        matches!(held, Taken::Refused { again: false, held_for } if held_for <= MINUTE / 2),
        "{held:?}"
    );
    let made = alone(MINUTE, 4);
    assert!(
        matches!(made, Taken::Refused { again: true, .. }),
        "{made:?}"
    );
    pollster::block_on(link.script(Script::Rollback)).expect("done");
}

/// The epoch began a minute ago, and whoever waits counts from 90 minutes ago on.
#[test]
fn a_lease_that_may_be_held_from_an_earlier_epoch_is_given_after_the_longer_time() {
    const HOUR: i64 = 3_600_000_000;
    const EPOCH: Script = Script::Run(
        "UPDATE lockapi.epoch SET number = number + 40000, begun_at = pg_catalog.clock_timestamp() - interval '1 min',
                waits_from = pg_catalog.clock_timestamp() - interval '90 min'",
    );
    let (url, _runtime) = crate::server();
    let mut link = LibraryConnection::connect(Library::Sync, &url);
    // When the lease was renewed, ends, was released and may be given, in seconds from now on; what is wanted, and how many minutes
    // it is held from now on if it is not given.
    for (renewed, expires, released, held, wanted, left) in [
        (-10_800, -7200, "NULL", "NULL", 2 * HOUR, Some(29)),
        (-10_800, -3600, "NULL", "NULL", HOUR, Some(29)),
        (-10_800, -7200, "NULL", "NULL", HOUR, None),
        (-10_800, -3600, "-9000", "NULL", HOUR, None),
        (-10_800, -3600, "-9000", "NULL", 2 * HOUR, Some(29)),
        // In this epoch.
        (-10_800, -30, "-30", "NULL", 2 * HOUR, None),
        (-10_800, 600, "-30", "600", 2 * HOUR, Some(9)),
        (-30, -10, "NULL", "NULL", 2 * HOUR, None),
        (-30, -20, "-20", "NULL", 2 * HOUR, None),
        // Of before the clock was set back.
        (3600, -30, "-30", "NULL", 2 * HOUR, Some(29)),
        (-30, -30, "3600", "NULL", 2 * HOUR, Some(29)),
    ] {
        for way in WAYS {
            let case = format!("{way}: {renewed} {expires} {released} {held} {wanted}");
            let namespace = format!("n{:016x}", fastrand::u64(..));
            let lease = Acquire {
                namespace: namespace.clone(),
                key: "it".to_owned(),
                slot: 1,
                acquisition: 1,
                ttl: HOUR,
                hold: 0,
                owner: String::new(),
                data: String::new(),
            };
            assert_eq!(ask(&mut link, "alone", &lease), None, "{case}");
            let row = format!(
                "UPDATE lockapi.lease
                    SET renewed_at = now() + {renewed} * interval '1 s', expires_at = now() + {expires} * interval '1 s',
                        released_at = now() + {released} * interval '1 s', held_until = now() + {held} * interval '1 s'
                  WHERE namespace = '{namespace}'"
            );
            for script in [BEGIN, EPOCH, Script::Run(row.leak())] {
                pollster::block_on(link.script(script)).expect("done");
            }
            let asked = Acquire {
                acquisition: 2,
                ttl: wanted,
                ..lease
            };
            let told = ask(&mut link, way, &asked).map(|left| left / 60_000_000);
            assert_eq!(told, left, "{case}");
            pollster::block_on(link.script(Script::Rollback)).expect("done");
        }
    }
}

/// It may be another's, of whom the server has not heard.
#[test]
fn a_lease_that_no_epoch_knows_is_given_after_its_time() {
    const HOUR: i64 = 3_600_000_000;
    const EPOCH: Script = Script::Run(
        "UPDATE lockapi.epoch SET number = number + 40000, begun_at = pg_catalog.clock_timestamp(),
                waits_from = pg_catalog.clock_timestamp() - interval '90 min'",
    );
    let (url, _runtime) = crate::server();
    let mut link = LibraryConnection::connect(Library::Sync, &url);
    for (wanted, left) in [(HOUR, None), (2 * HOUR, Some(29))] {
        for way in &WAYS[..2] {
            let lease = Acquire {
                namespace: format!("n{:016x}", fastrand::u64(..)),
                key: "it".to_owned(),
                slot: 1,
                acquisition: 1,
                ttl: wanted,
                hold: 0,
                owner: String::new(),
                data: String::new(),
            };
            for script in [BEGIN, EPOCH] {
                pollster::block_on(link.script(script)).expect("done");
            }
            let held = ask(&mut link, way, &lease).map(|left| left / 60_000_000);
            assert_eq!(held, left, "{way}: {wanted}");
            pollster::block_on(link.script(Script::Rollback)).expect("done");
        }
    }
}

/// The epoch began three days ago. Whoever had the lease before may have it for as long as its row shows.
#[test]
fn a_lease_of_an_earlier_epoch_is_swept_after_its_time() {
    const DAY: i64 = 86_400;
    let (url, _runtime) = crate::server();
    let mut link = LibraryConnection::connect(Library::Sync, &url);
    // From when on it counts; when the lease was renewed, ended and was released, in hours from now on.
    for (waits, renewed, expires, released, swept) in [
        (-72, -96, -48, "NULL", true),
        (-72, -200, -48, "NULL", false),
        (-72, -200, -48, "-48", true),
        (0, -96, -48, "NULL", false),
        // In this epoch.
        (0, -60, -30, "NULL", true),
        (0, -60, -20, "NULL", false),
    ] {
        let case = format!("{waits} {renewed} {expires} {released}");
        let namespace = format!("n{:016x}", fastrand::u64(..));
        let lease = Acquire {
            namespace: namespace.clone(),
            key: namespace.clone(),
            slot: 1,
            acquisition: 1,
            ttl: DAY * 1_000_000,
            hold: 0,
            owner: String::new(),
            data: String::new(),
        };
        assert_eq!(ask(&mut link, "alone", &lease), None, "{case}");
        let change = format!(
            "UPDATE lockapi.epoch
                SET number = number + 40000, begun_at = now() - interval '72 h', waits_from = now() + {waits} * interval '1 h';
             UPDATE lockapi.lease
                SET renewed_at = now() + {renewed} * interval '1 h', expires_at = now() + {expires} * interval '1 h',
                    released_at = now() + {released} * interval '1 h'
              WHERE namespace = '{namespace}'"
        );
        for script in [BEGIN, Script::Run(change.leak())] {
            pollster::block_on(link.script(script)).expect("done");
        }
        let sweep = Sweep {
            after: (namespace.clone(), namespace, 0),
            most: 1,
        };
        let answer = pollster::block_on(link.perform(&[sweep])).expect("answered");
        assert_eq!(answer[0].deleted, i64::from(swept), "{case}");
        pollster::block_on(link.script(Script::Rollback)).expect("done");
    }
}
