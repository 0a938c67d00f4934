//! What is granted of leases in a later epoch, in databases of their own.

use lockapi::suite::lease::{Acquire, Acquired, Release, Renew, Sweep};
use postgres::{Client, NoTls};

use crate::own_database::{OwnDatabase, perform};

const ENTER: &str = "SELECT lockapi.enter_epoch()";
const FORGET: &str = "UPDATE lockapi.epoch SET timeline = 0";
const MINUTE: i64 = 60_000_000;

fn acquire_for(ttl: i64, key: &str, acquisition: i64) -> Acquire {
    Acquire {
        namespace: "epochs".to_owned(),
        key: key.to_owned(),
        slot: 0,
        acquisition,
        ttl,
        hold: 0,
        owner: String::new(),
        data: String::new(),
    }
}

fn acquire(key: &str, acquisition: i64) -> Acquire {
    acquire_for(MINUTE, key, acquisition)
}

fn release(key: &str, fence: i64) -> Release {
    Release {
        namespace: "epochs".to_owned(),
        key: key.to_owned(),
        slots: [0].into(),
        fence,
    }
}

/// What is released says nothing of the holders that a standby has not heard of, however often it is released.
#[test]
fn a_release_that_is_repeated_in_a_later_epoch_frees_nothing() {
    let database = OwnDatabase::migrated();
    database.number(ENTER);
    let mut client = Client::connect(&database.url(), NoTls).expect("a connection");
    for (key, released_before, renewed) in [
        ("released", true, false),
        ("held", false, false),
        ("renewed", false, true),
    ] {
        let Acquired::Granted(fence) = perform(&mut client, acquire(key, 1)) else {
            panic!("{key}: nobody has it");
        };
        if released_before {
            assert!(perform(&mut client, release(key, fence)));
        }
        database.sql(FORGET);
        database.number(ENTER);
        if renewed {
            let renew = Renew {
                namespace: "epochs".to_owned(),
                key: key.to_owned(),
                slots: [0].into(),
                fence,
                ttl: 60_000_000,
            };
            assert!(perform(&mut client, renew));
        }
        for _ in 0..3 {
            assert!(
                perform(&mut client, release(key, fence)),
                "{key}: its answer was lost"
            );
        }
        let next = perform(&mut client, acquire(key, 2));
        let free = matches!(next, Acquired::Granted(_));
        assert_eq!(free, renewed, "{key}: {next:?}");
        // Nobody has to wait for the next one.
        database.sql("UPDATE lockapi.epoch SET begun_at = '1970-01-01', waits_from = '1970-01-01'");
    }
}

/// What was released before the epoch may have been given to another, also when the clock was set back since.
#[test]
fn f02_a_clock_that_is_set_back_in_an_epoch_gives_nothing_early() {
    let database = OwnDatabase::migrated();
    database.number(ENTER);
    let mut client = Client::connect(&database.url(), NoTls).expect("a connection");
    let Acquired::Granted(fence) = perform(&mut client, acquire("job", 1)) else {
        panic!("nobody has it");
    };
    assert!(perform(&mut client, release("job", fence)));
    database.sql(FORGET);
    database.number(ENTER);
    // All that was written is later by as much as the clock is set back.
    let step = "interval '10 s'";
    database.sql(&format!(
        "UPDATE lockapi.epoch SET begun_at = begun_at + {step}, waits_from = waits_from + {step};
         UPDATE lockapi.lease
            SET acquired_at = acquired_at + {step}, renewed_at = renewed_at + {step},
                released_at = released_at + {step}, expires_at = expires_at + {step}"
    ));
    database.number(ENTER);
    let Acquired::Held(left) = perform(&mut client, acquire("job", 2)) else {
        panic!("it may be held by another");
    };
    assert!(left > 50_000_000, "{left} us");
}

/// The new server's clock is behind by ten minutes: what was released there may have had another holder since.
#[test]
fn f02_what_is_free_is_granted_after_its_time_where_the_new_clock_is_behind() {
    let database = OwnDatabase::migrated();
    database.number(ENTER);
    let mut client = Client::connect(&database.url(), NoTls).expect("a connection");
    let Acquired::Granted(fence) = perform(&mut client, acquire("job", 1)) else {
        panic!("nobody has it");
    };
    assert!(perform(&mut client, release("job", fence)));
    database.sql(
        "UPDATE lockapi.lease
            SET acquired_at = acquired_at + interval '10 minutes', renewed_at = renewed_at + interval '10 minutes',
                released_at = released_at + interval '10 minutes', expires_at = expires_at + interval '10 minutes'",
    );
    database.sql(FORGET);
    database.number(ENTER);
    let Acquired::Held(left) = perform(&mut client, acquire("job", 2)) else {
        panic!("it may be held by another");
    };
    assert!((50_000_000..=60_000_000).contains(&left), "{left} us");
    database.sql("UPDATE lockapi.epoch SET waits_from = waits_from - interval '1 minute'");
    let granted = perform(&mut client, acquire("job", 3));
    assert!(matches!(granted, Acquired::Granted(_)), "{granted:?}");
}

/// A backup of the day before yesterday is restored: a row that ended then tells for how long it may be held now.
#[test]
fn f02_a_sweep_does_not_shorten_what_may_be_held_in_a_later_epoch() {
    let database = OwnDatabase::migrated();
    database.number(ENTER);
    let mut client = Client::connect(&database.url(), NoTls).expect("a connection");
    let swept = |client: &mut Client| {
        let sweep = Sweep {
            after: (String::new(), String::new(), 0),
            most: 1000,
        };
        perform(client, sweep).deleted
    };
    for key in ["held", "released"] {
        let Acquired::Granted(fence) = perform(&mut client, acquire_for(60 * MINUTE, key, 1))
        else {
            panic!("nobody has it");
        };
        if key == "released" {
            assert!(perform(&mut client, release(key, fence)));
        }
    }
    database.sql(
        "UPDATE lockapi.lease
            SET acquired_at = acquired_at - interval '2 days', renewed_at = renewed_at - interval '2 days',
                released_at = released_at - interval '2 days', expires_at = expires_at - interval '2 days'",
    );
    database.sql(FORGET);
    database.number(ENTER);
    // Who asks for a released one waits for as long as where there is no row.
    assert_eq!(swept(&mut client), 1, "the released one");
    database.sql("UPDATE lockapi.epoch SET waits_from = waits_from - interval '10 s'");
    let later = perform(&mut client, acquire_for(1_000_000, "held", 2));
    assert!(
        matches!(later, Acquired::Held(_)),
        "it may be held for an hour"
    );
    let later = perform(&mut client, acquire_for(1_000_000, "released", 2));
    assert!(matches!(later, Acquired::Granted(_)), "{later:?}");
    database.sql("UPDATE lockapi.epoch SET waits_from = waits_from - interval '1 hour'");
    assert_eq!(swept(&mut client), 1, "its time is over");
}

/// The statement that the guide for operators has for it, as it stands there.
fn recipe(of: &str) -> String {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operating.md");
    let guide = std::fs::read_to_string(guide).expect("the guide");
    let mut rows = guide.lines();
    let row = rows.find(|row| row.starts_with(of)).expect("a row");
    row.split('`').nth(1).expect("a statement").to_owned()
}

#[test]
fn f02_leases_do_not_wait_where_the_operator_knows_that_nothing_was_lost() {
    let database = OwnDatabase::migrated();
    database.number(ENTER);
    let mut client = Client::connect(&database.url(), NoTls).expect("a connection");
    let mut granted = |key: &str, acquisition| match perform(&mut client, acquire(key, acquisition))
    {
        Acquired::Granted(fence) => Some(fence),
        Acquired::Held(_) => None,
    };
    let held = granted("held", 1).expect("nobody has it");
    let fence = granted("released", 1).expect("nobody has it");
    let mut other = Client::connect(&database.url(), NoTls).expect("a connection");
    assert!(perform(&mut other, release("released", fence)));
    database.sql(FORGET);
    let number = database.number(ENTER);
    for key in ["held", "released", "of nobody"] {
        assert_eq!(granted(key, 2), None, "{key}");
    }
    database.sql(&recipe("| a promotion in which nothing was lost"));
    assert_eq!(database.number(ENTER), number, "it is the same epoch");
    assert_eq!(granted("held", 3), None, "it has its holder");
    for key in ["released", "of nobody"] {
        assert!(granted(key, 3) > Some(held), "{key}");
    }
}
