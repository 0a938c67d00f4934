//! The database and the model of the operations give the same answers.

use std::sync::{Mutex, PoisonError};

use lockapi::driver::{Connection, Script};
use lockapi_conformance::differential::admin::Older;
use lockapi_conformance::differential::queue::OTHER;
use lockapi_conformance::differential::{self, SESSIONS};
use postgres::{Client, NoTls};
use proptest::test_runner::{Config, TestRunner};

use crate::connection::{Library, LibraryConnection};

/// A script; not all libraries send an empty one.
const NOTHING: &str = "SELECT 1";

#[test]
fn x04_sqlx_and_model_agree() {
    agree([Library::Sqlx; SESSIONS]);
}

#[test]
fn x04_diesel_and_model_agree() {
    agree([Library::Diesel; SESSIONS]);
}

#[test]
fn x04_sync_and_model_agree() {
    agree([Library::Sync; SESSIONS]);
}

#[test]
fn x04_diesel_async_and_model_agree() {
    agree([Library::DieselAsync; SESSIONS]);
}

#[test]
fn x04_sea_orm_and_model_agree() {
    agree([Library::SeaOrm; SESSIONS]);
}

#[test]
fn x04_all_together_and_model_agree() {
    agree(Library::ALL);
}

/// A program's own transactions have the isolation of its role.
#[test]
fn x04_all_together_and_model_agree_in_repeatable_read() {
    const LEVEL: &str =
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ";
    agree_after(LEVEL, Library::ALL);
}

#[test]
fn x04_all_together_and_model_agree_in_serializable() {
    const LEVEL: &str = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE";
    agree_after(LEVEL, Library::ALL);
}

#[test]
fn x04_permits_and_model_agree() {
    let (url, runtime) = crate::server();
    let _entered = runtime.enter();
    let observer = Mutex::new(Client::connect(&url, NoTls).expect("a connection"));
    let config = Config {
        cases: 300,
        failure_persistence: None,
        ..Config::default()
    };
    let connection = Mutex::new(LibraryConnection::connect(Library::Sqlx, &url));
    TestRunner::new(config)
        .run(&differential::permits::actions(), |actions| {
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            let namespace = format!("n{:016x}", fastrand::u64(..));
            let elapse = |time| age_leases(&observer, &namespace, time);
            let work = differential::permits::run(&mut *connection, &namespace, &actions, elapse);
            pollster::block_on(work);
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn x04_admin_and_model_agree() {
    let (url, runtime) = crate::server();
    let _entered = runtime.enter();
    let observer = Mutex::new(Client::connect(&url, NoTls).expect("a connection"));
    let config = Config {
        cases: 100,
        failure_persistence: None,
        ..Config::default()
    };
    let sessions =
        Mutex::new(Library::ALL.map(|library| LibraryConnection::connect(library, &url)));
    TestRunner::new(config)
        .run(&differential::admin::actions(), |actions| {
            let mut sessions = sessions.lock().unwrap_or_else(PoisonError::into_inner);
            unlock_all(&mut *sessions);
            let namespace = format!("n{:016x}", fastrand::u64(..));
            let elapse = |older| {
                let time = match older {
                    Older::Rows(time) => {
                        age_leases(&observer, &namespace, time);
                        time
                    }
                    Older::Names(time) => time,
                };
                let micros = time.as_micros();
                let older = match older {
                    Older::Rows(_) => format!(
                        "UPDATE lockapi.lock_note SET since = since - {micros} * interval '1 microsecond'
                          WHERE backend IN (SELECT backend FROM lockapi.lock_session WHERE namespace = '{namespace}')"
                    ),
                    Older::Names(_) => format!(
                        "UPDATE lockapi.lock_name SET seen_at = seen_at - {micros} * interval '1 microsecond'
                          WHERE namespace = '{namespace}'"
                    ),
                };
                let mut observer = observer.lock().unwrap_or_else(PoisonError::into_inner);
                observer.batch_execute(&older).expect("older");
            };
            let work = differential::admin::run(&mut *sessions, &namespace, &actions, elapse);
            pollster::block_on(work);
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

fn unlock_all(sessions: &mut [LibraryConnection]) {
    for session in sessions {
        let cleared = session.script(Script::Run("SELECT pg_advisory_unlock_all()"));
        pollster::block_on(cleared).expect("cleared");
    }
}

/// Makes the leases of a namespace older.
fn age_leases(observer: &Mutex<Client>, namespace: &str, time: std::time::Duration) {
    let mut observer = observer.lock().unwrap_or_else(PoisonError::into_inner);
    let micros = i64::try_from(time.as_micros()).expect("a short time");
    observer
        .execute(
            "UPDATE lockapi.lease
                SET acquired_at = acquired_at - $2::int8 * interval '1 microsecond',
                    renewed_at = renewed_at - $2::int8 * interval '1 microsecond',
                    held_until = held_until - $2::int8 * interval '1 microsecond',
                    expires_at = expires_at - $2::int8 * interval '1 microsecond',
                    released_at = released_at - $2::int8 * interval '1 microsecond'
              WHERE namespace = $1",
            &[&namespace, &micros],
        )
        .expect("older");
}

#[test]
fn x04_queue_and_model_agree() {
    queues_agree(NOTHING);
}

#[test]
fn x04_queue_and_model_agree_in_serializable() {
    queues_agree("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE");
}

fn queues_agree(script: &'static str) {
    let (url, runtime) = crate::server();
    let _entered = runtime.enter();
    let observer = Mutex::new(Client::connect(&url, NoTls).expect("a connection"));
    let config = Config {
        cases: 300,
        failure_persistence: None,
        ..Config::default()
    };
    let mut connection = LibraryConnection::connect(Library::Sync, &url);
    pollster::block_on(connection.script(Script::Run(script))).expect("a session");
    let connection = Mutex::new(connection);
    TestRunner::new(config)
        .run(&differential::queue::actions(), |actions| {
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            let namespace = format!("n{:016x}", fastrand::u64(..));
            let elapse = |time| age_jobs(&observer, &namespace, time);
            let work = differential::queue::run(&mut *connection, &namespace, &actions, elapse);
            pollster::block_on(work);
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

/// Makes the jobs of a namespace older, and of the other.
fn age_jobs(observer: &Mutex<Client>, namespace: &str, time: std::time::Duration) {
    let mut observer = observer.lock().unwrap_or_else(PoisonError::into_inner);
    let micros = time.as_micros();
    let older = format!(
        "UPDATE lockapi.job
            SET run_at = CASE WHEN due_at IS NULL THEN run_at - {micros} * interval '1 microsecond' ELSE run_at END,
                due_at = due_at - {micros} * interval '1 microsecond',
                lease_until = lease_until - {micros} * interval '1 microsecond',
                expires_at = expires_at - {micros} * interval '1 microsecond',
                started_at = started_at - {micros} * interval '1 microsecond'
          WHERE namespace IN ('{namespace}', '{namespace}{OTHER}');
         UPDATE lockapi.queue SET paused_until = paused_until - {micros} * interval '1 microsecond'
          WHERE namespace IN ('{namespace}', '{namespace}{OTHER}');
         UPDATE lockapi.paused_name SET paused_until = paused_until - {micros} * interval '1 microsecond'
          WHERE namespace IN ('{namespace}', '{namespace}{OTHER}');
         UPDATE lockapi.queue_limit SET tat = tat - {micros}::int8 * 1000, at = at - {micros}::int8 * 1000
          WHERE namespace IN ('{namespace}', '{namespace}{OTHER}');
         UPDATE lockapi.group_rate SET tat = tat - {micros}::int8 * 1000, at = at - {micros}::int8 * 1000
          WHERE namespace IN ('{namespace}', '{namespace}{OTHER}');
         UPDATE lockapi.job_archive
            SET completed_at = completed_at - {micros} * interval '1 microsecond',
                expires_at = expires_at - {micros} * interval '1 microsecond'
          WHERE namespace IN ('{namespace}', '{namespace}{OTHER}');
         UPDATE lockapi.job_result SET expires_at = expires_at - {micros} * interval '1 microsecond'
          WHERE namespace IN ('{namespace}', '{namespace}{OTHER}')"
    );
    observer.batch_execute(&older).expect("older");
}

/// Jobs that expire wait, in a queue that is paused as well, are running, have run, or were given back.
#[test]
fn x04_expired_jobs_are_swept_by_the_model_as_well() {
    use differential::queue::Action::{
        CompleteAndClaim, Count, Elapse, Expire, Keyed, Pause, Push, Settle, Sweep,
    };

    let (url, runtime) = crate::server();
    let _entered = runtime.enter();
    let observer = Mutex::new(Client::connect(&url, NoTls).expect("a connection"));
    let mut connection = LibraryConnection::connect(Library::Sync, &url);
    let claim = |most, lease| CompleteAndClaim(Vec::new(), (most, lease, false, false, false));
    for (most, small, own) in [
        (1, false, false),
        (2, false, true),
        (3, true, true),
        (200, true, false),
    ] {
        let actions = [
            Push(vec![(0, 0, 3); 15]),
            Keyed(vec![(0, Some(0), 1, 0), (1, Some(1), 1, 1)]),
            claim(2, 2),
            claim(6, 20),
            // One of them is given back.
            Settle(vec![(4, 3, 0)]),
            Pause(Some(0)),
            Expire(most, small, own),
            Elapse(7),
            Expire(most, small, own),
            Count(20),
            // The key is free.
            Keyed(vec![(0, Some(0), 1, 0)]),
            Pause(None),
            claim(20, 1),
            Elapse(2),
            Sweep,
            Expire(most, small, own),
            Count(20),
        ];
        let namespace = format!("n{:016x}", fastrand::u64(..));
        let elapse = |time| age_jobs(&observer, &namespace, time);
        let work = differential::queue::run(&mut connection, &namespace, &actions, elapse);
        pollster::block_on(work);
    }
}

/// Jobs that one statement makes due are due at the same time, so their numbers decide, whatever the
/// order of the rows is.
#[test]
fn x04_jobs_that_are_due_together_keep_their_order() {
    use differential::queue::Action::{CompleteAndClaim, Push, Redrive, Settle};

    let (url, runtime) = crate::server();
    let _entered = runtime.enter();
    let mut connection = LibraryConnection::connect(Library::Sync, &url);
    let jobs = || Push(vec![(0, 0, 3); 4]);
    let reject = |back| Settle(vec![(back, 1, 1)]);
    let claim = || CompleteAndClaim(Vec::new(), (4, 1, false, false, false));
    let redriven = [
        vec![jobs(), claim()],
        (0..4).map(reject).collect(),
        vec![Redrive(4), claim()],
    ];
    let snoozed = [
        jobs(),
        claim(),
        Settle((0..4).map(|back| (back, 2, 0)).collect()),
        claim(),
    ];
    for actions in [redriven.concat(), snoozed.to_vec()] {
        let namespace = format!("n{:016x}", fastrand::u64(..));
        let work = differential::queue::run(&mut connection, &namespace, &actions, |_| {});
        pollster::block_on(work);
    }
}

/// What is there and set in a queue is no matter to others, where names, keys and groups are the same.
#[test]
fn x04_queues_are_apart() {
    use differential::queue::Action::{
        Cancel, CompleteAndClaim, Count, DeadLetters, Discard, Expire, Keyed, Limit, OfGroups,
        Pause, PauseName, Purge, Push, Redrive, SearchBelowFloors, Settle, Take, Turn,
    };
    use differential::queue::GroupAction;

    let (url, _runtime) = crate::server();
    let mut connection = LibraryConnection::connect(Library::Sync, &url);
    let claim = |most| CompleteAndClaim(Vec::new(), (most, 1, false, false, false));
    let fill = || {
        vec![
            Push(vec![(0, 0, 3); 4]),
            Keyed(vec![(0, Some(0), 1, 0), (1, Some(1), 1, 1)]),
            claim(2),
            Settle(vec![(0, 1, 1)]),
            OfGroups(GroupAction::Push(vec![((1, 0), 1, 0, 2); 3])),
        ]
    };
    let settings = [
        Pause(Some(0)),
        PauseName(true, Some(0)),
        Limit(Some(1), Some(1)),
        OfGroups(GroupAction::Set(1, true, Some(1))),
        OfGroups(GroupAction::Limit(1, Some((Some(0), None)))),
    ];
    let all = || (0..18).collect::<Vec<u8>>();
    let works = [
        vec![claim(20)],
        vec![Limit(Some(9), None), claim(20)],
        vec![Take(20)],
        vec![SearchBelowFloors(false)],
        vec![Purge(1)],
        vec![Purge(20)],
        vec![Cancel(all())],
        vec![Redrive(20)],
        vec![Discard(20)],
        vec![DeadLetters(all(), true)],
        vec![DeadLetters(all(), false)],
        vec![OfGroups(GroupAction::Admit(4))],
        vec![OfGroups(GroupAction::Limit(1, None))],
        vec![Pause(None), PauseName(true, None), Limit(None, None)],
        vec![Expire(20, false, true)],
    ];
    for other in [1, 2] {
        for (setting, work) in settings
            .iter()
            .flat_map(|setting| works.iter().map(move |work| (setting, work)))
        {
            let actions = [
                fill(),
                vec![setting.clone(), Turn(other)],
                fill(),
                work.clone(),
                vec![
                    Count(20),
                    Turn(0),
                    Count(20),
                    OfGroups(GroupAction::Admit(4)),
                    claim(20),
                ],
            ]
            .concat();
            let namespace = format!("n{:016x}", fastrand::u64(..));
            let work = differential::queue::run(&mut connection, &namespace, &actions, |_| {});
            pollster::block_on(work);
        }
    }
}

fn agree(libraries: [Library; SESSIONS]) {
    agree_after(NOTHING, libraries);
}

/// On sessions that began with a script.
fn agree_after(script: &'static str, libraries: [Library; SESSIONS]) {
    let (url, runtime) = crate::server();
    let _entered = runtime.enter();
    let observer = Mutex::new(Client::connect(&url, NoTls).expect("a connection"));
    let config = Config {
        cases: 100,
        failure_persistence: None,
        ..Config::default()
    };
    let sessions = libraries.map(|library| {
        let mut session = LibraryConnection::connect(library, &url);
        pollster::block_on(session.script(Script::Run(script))).expect("a session");
        session
    });
    let sessions = Mutex::new(sessions);
    TestRunner::new(config)
        .run(&differential::actions(), |actions| {
            let mut sessions = sessions.lock().unwrap_or_else(PoisonError::into_inner);
            unlock_all(&mut *sessions);
            let namespace = format!("n{:016x}", fastrand::u64(..));
            let elapse = |time: std::time::Duration| {
                age_leases(&observer, &namespace, time);
                let mut observer = observer.lock().unwrap_or_else(PoisonError::into_inner);
                let micros = i64::try_from(time.as_micros()).expect("a short time");
                observer
                    .execute(
                        "UPDATE lockapi.answer SET keep_until = keep_until - $2::int8 * interval '1 microsecond'
                          WHERE namespace = $1",
                        &[&namespace, &micros],
                    )
                    .expect("older");
                observer
                    .execute(
                        "UPDATE lockapi.rate_limit
                            SET tat = tat - $2::int8 * 1000, at = at - $2::int8 * 1000,
                                started = started - $2::int8 * 1000,
                                blocked_until = blocked_until - $2::int8 * 1000,
                                due = due - $2::int8 * 1000,
                                withheld_from = withheld_from - $2::int8 * 1000
                          WHERE namespace = $1",
                        &[&namespace, &micros],
                    )
                    .expect("older");
                observer
                    .execute(
                        "UPDATE lockapi.rate_reservation
                            SET at = at - $2::int8 * 1000, expires = expires - $2::int8 * 1000
                          WHERE namespace = $1",
                        &[&namespace, &micros],
                    )
                    .expect("older");
            };
            let work = differential::run(&mut *sessions, &namespace, &actions, elapse);
            pollster::block_on(work);
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}
