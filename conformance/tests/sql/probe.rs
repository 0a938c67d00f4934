//! The statement of the probe, on the server and on the model.

use std::time::Duration;

use lockapi::driver::{Connection, Connector, Mode, Script};
use lockapi::memory::Database;
use lockapi::suite::engine::{BEGIN_PROBE, Lock, Marker, SessionIdentity};

use crate::connection::{Library, LibraryConnection};

async fn perform<C: Connection>(connection: &mut C, marker: &str, lock: Lock) -> SessionIdentity {
    let marker = marker.to_owned();
    let seen = connection.perform(&[Marker { marker, lock }]).await;
    seen.expect("answered").remove(0)
}

/// In a transaction of its own.
async fn mark<C: Connection>(connection: &mut C, marker: &str, lock: Lock) -> SessionIdentity {
    connection
        .script(Script::Begin("BEGIN"))
        .await
        .expect("begun");
    let seen = perform(connection, marker, lock).await;
    connection.script(Script::Commit).await.expect("committed");
    seen
}

/// What two sessions are answered.
async fn answers<C: Connection>(one: &mut C, other: &mut C) -> Vec<(String, Option<bool>)> {
    let (key, second) = (fastrand::i64(..), fastrand::i64(..));
    let (first_pid, other_pid) = (
        mark(one, "", Lock::None).await.pid,
        mark(other, "", Lock::None).await.pid,
    );
    assert_ne!(first_pid, other_pid);
    let mut seen = Vec::new();
    seen.push(mark(one, "m1", Lock::Session(key)).await);
    seen.push(mark(one, "", Lock::None).await);
    seen.push(mark(other, "", Lock::Transaction(key)).await);
    seen.push(mark(other, "m2", Lock::Session(key)).await);
    other.script(Script::Begin("BEGIN")).await.expect("begun");
    seen.push(perform(other, "", Lock::Transaction(second)).await);
    seen.push(mark(one, "", Lock::Transaction(second)).await);
    other.script(Script::Commit).await.expect("committed");
    seen.push(mark(other, "", Lock::None).await);
    seen.push(mark(one, "", Lock::Transaction(second)).await);
    seen.push(mark(one, "-", Lock::GiveBack(key)).await);
    seen.push(mark(one, "", Lock::GiveBack(key)).await);
    seen.push(mark(other, "-", Lock::Session(key)).await);
    seen.push(mark(other, "", Lock::GiveBack(key)).await);
    for one in &seen {
        assert!(one.number >= 130_000 && !one.version.is_empty(), "{one:?}");
        assert!([first_pid, other_pid].contains(&one.pid));
    }
    seen.into_iter().map(|it| (it.marker, it.locked)).collect()
}

#[test]
fn x04_marker_and_model_agree() {
    let (url, runtime) = crate::server();
    let _entered = runtime.enter();
    let database = Database::new();
    let session = || pollster::block_on(Connector::connect(&database, Mode::Proxied));
    let (mut one, mut other) = (session().expect("one"), session().expect("other"));
    let model = pollster::block_on(answers(&mut one, &mut other));
    for library in Library::ALL {
        let session = || LibraryConnection::connect(library, &url);
        let (mut one, mut other) = (session(), session());
        let server = pollster::block_on(answers(&mut one, &mut other));
        assert_eq!(server, model, "on {library:?}");
    }
    let locked: Vec<_> = model.iter().filter_map(|(_, locked)| *locked).collect();
    let expected = [
        true, false, false, true, false, true, true, false, true, true,
    ];
    assert_eq!(locked, expected);
}

/// The role's limits do not end what the probe does, which waits for a proxy now and then.
#[test]
fn x04_a_transaction_of_the_probe_outlives_the_limits_of_the_role() {
    let (url, runtime) = crate::server();
    let _entered = runtime.enter();
    let limits = "SET statement_timeout = '10ms'; SET idle_in_transaction_session_timeout = '10ms'; SET lock_timeout = '10ms'";
    for library in Library::ALL {
        let mut session = LibraryConnection::connect(library, &url);
        pollster::block_on(async {
            session.script(Script::Run(limits)).await.expect("set");
            session
                .script(Script::Begin(BEGIN_PROBE))
                .await
                .expect("begun");
            std::thread::sleep(Duration::from_millis(100));
            session
                .script(Script::Run("SELECT pg_sleep(0.1)"))
                .await
                .expect("no limit");
            perform(&mut session, "", Lock::None).await;
            session.script(Script::Commit).await.expect("committed");
            // They hold again afterwards.
            let ended = session.script(Script::Run("SELECT pg_sleep(1)")).await;
            assert!(ended.is_err(), "on {library:?}");
        });
    }
}
