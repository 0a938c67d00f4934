//! Statements in an epoch that has just begun, in transactions that are rolled back: the epoch is that of
//! the whole database.

use lockapi::driver::{Connection, Script};
use lockapi::suite::id::{ClaimWorker, ClaimedWorker, RenewWorker};

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
