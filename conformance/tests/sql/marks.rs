//! The session that holds locks is known by its mark.

use std::thread;
use std::time::{Duration, Instant};

use lockapi::driver::{Connection, Script};
use lockapi::mutex::LockMode;
use lockapi::suite::engine::{Lock, Marker};
use lockapi::suite::mutex::{
    AsyncCommit, DeadlockCheck, LockAnswer, LockRequest, MarkSession, Ping, Wait,
};
use lockapi::{ErrorKind, LockId};
use postgres::{Client, NoTls};

use crate::connection::{Library, LibraryConnection};

/// The process that serves a connection.
async fn serving<C: Connection>(connection: &mut C) -> i64 {
    let ask = Marker {
        marker: String::new(),
        lock: Lock::None,
    };
    connection.perform(&[ask]).await.expect("answered")[0].pid
}

/// A pooler that begins to share sessions sends a statement to the session of another program, or that of this one
/// after others have used it.
#[test]
fn what_reaches_another_session_does_nothing() {
    let (url, runtime) = crate::server();
    let _entered = runtime.enter();
    let mut person = Client::connect(&url, NoTls).expect("a connection");
    for library in Library::ALL {
        let session = || LibraryConnection::connect(library, &url);
        let (mut one, mut other) = (session(), session());
        let (mark, theirs) = (fastrand::i64(..), fastrand::i64(..));
        let locks = [false, true].map(|pair| LockId {
            key: fastrand::i64(..),
            pair,
        });
        let request = |lock, release| LockRequest {
            lock,
            mode: LockMode::Exclusive,
            release,
            session: mark,
        };
        pollster::block_on(async {
            let mut mark_session = async |mark| {
                let marked_session = one.perform(&[MarkSession { mark }]).await;
                marked_session.expect("answered")[0].marked
            };
            assert!(mark_session(mark).await);
            assert!(!mark_session(theirs).await, "it is the session of another");
            let held = one.perform(&locks.map(|lock| request(lock, false))).await;
            assert!(held.is_ok());
            // That of another program, which has a mark too or none.
            nothing_is_done(&mut other, mark, locks).await;
            let marked_session = other.perform(&[MarkSession { mark: theirs }]).await;
            assert!(marked_session.expect("answered")[0].marked);
            nothing_is_done(&mut other, mark, locks).await;
            let other = serving(&mut other).await;
            let held = format!(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = {other}"
            );
            let held: i64 = person.query_one(&held, &[]).expect("a number").get(0);
            assert_eq!(held, 1, "its mark");
            // What is held is held.
            let ping = [Ping { session: mark }];
            assert!(one.perform(&ping).await.is_ok());
            let released = one.perform(&locks.map(|lock| request(lock, true))).await;
            assert_eq!(released.expect("answered"), [LockAnswer::Released; 2]);
            // Others have used the session.
            let unlock = Script::Run("SELECT pg_advisory_unlock_all()");
            one.script(unlock).await.expect("unlocked");
            let failure = one.perform(&ping).await.unwrap_err();
            assert_eq!(failure.kind(), ErrorKind::Unavailable, "{failure:?}");
            let discard = Script::Run("RESET ALL");
            one.script(discard).await.expect("discarded");
            nothing_is_done(&mut one, mark, locks).await;
        });
    }
}

/// No statement of a session of locks is carried out in this one.
async fn nothing_is_done(connection: &mut LibraryConnection, session: i64, locks: [LockId; 2]) {
    let request = |lock, release| LockRequest {
        lock,
        mode: LockMode::Exclusive,
        release,
        session,
    };
    let wait = Wait {
        lock: locks[0],
        mode: LockMode::Exclusive,
        millis: 1,
        session,
    };
    let cycle = DeadlockCheck {
        lock: locks[0],
        holding: vec![locks[1]],
        session,
    };
    let mut failures = Vec::new();
    for release in [true, false] {
        let requests = locks.map(|lock| request(lock, release));
        failures.push(connection.perform(&requests).await.map(drop).unwrap_err());
        for one in requests {
            failures.push(connection.perform(&[one]).await.map(drop).unwrap_err());
        }
    }
    failures.push(connection.perform(&[wait]).await.map(drop).unwrap_err());
    failures.push(connection.perform(&[cycle]).await.map(drop).unwrap_err());
    let async_commit = connection.perform(&[AsyncCommit { session }]).await;
    failures.push(async_commit.unwrap_err());
    let ping = connection.perform(&[Ping { session }]).await;
    failures.push(ping.unwrap_err());
    for failure in failures {
        assert_eq!(failure.kind(), ErrorKind::Unavailable, "{failure:?}");
        assert!(failure.broken && !failure.sent, "{failure:?}");
    }
}

/// Anybody may see the mark and wait for it. A ping never lets it go.
#[test]
fn who_waits_for_the_mark_ends_no_session() {
    let (url, runtime) = crate::server();
    let _entered = runtime.enter();
    let mut session = LibraryConnection::connect(Library::Sync, &url);
    let mark = fastrand::i64(..);
    let marked_session = pollster::block_on(session.perform(&[MarkSession { mark }]));
    assert!(marked_session.expect("answered")[0].marked);
    let mut hostile = Client::connect(&url, NoTls).expect("a connection");
    let waiting = thread::spawn(move || {
        let wait = format!("SET lock_timeout = '500ms'; SELECT pg_advisory_lock_shared({mark})");
        hostile.batch_execute(&wait)
    });
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(1) {
        let ping = pollster::block_on(session.perform(&[Ping { session: mark }]));
        ping.expect("it has its mark");
    }
    let waited = waiting.join().expect("the thread");
    assert!(waited.is_err(), "the mark was given to another");
}
