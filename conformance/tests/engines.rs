//! Servers and poolers that speak the protocol and differ from `PostgreSQL`: what a backend says of them.
//!
//! None of them runs here. Each is a real server behind a connector that behaves as the documentation of another
//! engine, or its bug reports, say; see `docs/engines.md`.

#[path = "engines/foreign.rs"]
mod foreign;
#[path = "engines/pooler.rs"]
mod pooler;
#[path = "engines/slow.rs"]
mod slow;

use std::sync::Arc;
use std::time::Duration;

use lockapi::driver::Connector;
use lockapi::lease::LeaseOptions;
use lockapi::queue::{Claim, Job};
use lockapi::{Backend, BackendOptions, Error, ErrorKind, Result};
use lockapi_conformance::cluster::Cluster;

use foreign::{Engine, Foreign};
use pooler::{Pooler, Turns};
use slow::Slow;

fn url() -> String {
    match Cluster::shared() {
        Ok(cluster) => cluster.url().to_owned(),
        Err(error) => panic!("no server: {error}"),
    }
}

async fn migrated() -> String {
    let url = url();
    let backend = lockapi_sqlx::connect_url(&url).await.expect("a backend");
    backend.migrate().await.expect("migrated");
    url
}

fn options() -> BackendOptions {
    BackendOptions::default().namespace(format!("n{:016x}", fastrand::u64(..)))
}

async fn connect(connector: impl Connector, options: BackendOptions) -> Result<Arc<dyn Backend>> {
    lockapi::engine::start("foreign", connector, options).await
}

async fn on(engine: Engine) -> Result<Arc<dyn Backend>> {
    let real = lockapi_sqlx::connector_url(&url()).expect("a connector");
    connect(Foreign::new(real, engine), options()).await
}

async fn refusal(engine: Engine) -> String {
    let error: Error = on(engine).await.expect_err("it must be refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(!error.is_retryable());
    error.to_string()
}

fn says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is missing in: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn m19_locks_that_are_given_to_everybody_are_refused() {
    let text = refusal(Engine::LocksAreStubs).await;
    says(
        &text,
        &["the same lock", "of the transaction", "CockroachDB"],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn m19_locks_of_sessions_that_are_given_to_everybody_are_refused() {
    let text = refusal(Engine::SessionLocksAreStubs).await;
    says(&text, &["the same lock", "of the session", "CockroachDB"]);
}

/// A fail-over ends; it is no server that does not exclude.
#[tokio::test(flavor = "multi_thread")]
async fn m19_two_servers_behind_one_name_are_told_apart() {
    let error = on(Engine::TwoServers).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    says(&error.to_string(), &["two servers", "the primary alone"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn m19_locks_that_nobody_is_given_are_refused() {
    let text = refusal(Engine::NoLockIsFree).await;
    says(&text, &["refused a lock that was free"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn m19_a_server_without_such_locks_is_refused() {
    let text = refusal(Engine::NoLocks).await;
    says(&text, &["pg_try_advisory_xact_lock", "42883"]);
    assert!(!text.contains("migrate"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn m19_an_old_server_is_refused() {
    let text = refusal(Engine::Version12).await;
    says(&text, &["PostgreSQL 13 or newer", "PostgreSQL 12.22"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn m19_without_notifications_others_poll() {
    let url = migrated().await;
    let options = options();
    let real = || lockapi_sqlx::connector_url(&url).expect("a connector");
    let there = connect(Foreign::new(real(), Engine::NoListen), options.clone());
    let there = there.await.expect("a backend");
    let here = connect(Foreign::new(real(), Engine::NoListen), options);
    let here = here.await.expect("a backend");
    let queue = there.queue("work").expect("a queue");
    let waiting = tokio::spawn(async move {
        loop {
            let claimed = queue.claim(&Claim::new(1)).await.expect("answered");
            if let Some(delivery) = claimed.into_iter().next() {
                return delivery.ack().await;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let door = there.mutex("door").expect("a mutex");
    let held = door.lock().await.expect("locked");
    let other = here.mutex("door").expect("a mutex");
    assert!(other.try_lock().await.expect("answered").is_none());
    let lease = || LeaseOptions::new(Duration::from_secs(30));
    let kept = here.lease("kept", lease()).expect("a lease");
    let guard = kept.acquire().await.expect("acquired");
    let wanted = there.lease("kept", lease()).expect("a lease");
    let next = tokio::spawn(async move { wanted.acquire().await });
    guard.release().await.expect("released");
    held.unlock().await.expect("unlocked");
    let job = Job::new("job", &1).expect("a job");
    here.queue("work")
        .expect("a queue")
        .push(job)
        .await
        .expect("pushed");
    let soon = Duration::from_secs(30);
    let done = tokio::time::timeout(soon, waiting).await.expect("polled");
    done.expect("the task").expect("acknowledged");
    let next = tokio::time::timeout(soon, next).await.expect("polled");
    drop(next.expect("the task").expect("acquired"));
}

#[tokio::test(flavor = "multi_thread")]
async fn m19_without_skip_locked_calls_are_unsupported() {
    migrated().await;
    let backend = on(Engine::NoSkipLocked).await.expect("a backend");
    let queue = backend.queue("work").expect("a queue");
    let job = Job::new("job", &1).expect("a job");
    queue.push(job).await.expect("a push needs none");
    let lease = LeaseOptions::new(Duration::from_secs(30));
    let lease = backend.lease("kept", lease).expect("a lease");
    let errors = [
        queue.claim(&Claim::new(1)).await.map(drop).unwrap_err(),
        lease.try_acquire().await.map(drop).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        says(&error.to_string(), &["SKIP LOCKED", "0A000"]);
    }
}

/// A session lock would belong to a session that others use too, although settings look as if it did not.
#[tokio::test(flavor = "multi_thread")]
async fn m19_a_pooler_that_carries_settings_along_is_detected() {
    let url = migrated().await;
    for turns in [Turns::LastUsed, Turns::RoundRobin] {
        for sessions in 1..=3 {
            let real = lockapi_sqlx::connector_url(&url).expect("a connector");
            let pooler = Pooler::new(real, sessions, turns);
            let backend = connect(pooler, options()).await.expect("a backend");
            let can = backend.capabilities();
            assert!(
                !can.session_locks && !can.notifications,
                "{turns:?} {sessions}"
            );
            let error = backend.mutex("door").expect_err("no session locks");
            assert_eq!(error.kind(), ErrorKind::Unsupported);
        }
    }
}

/// Each transaction gets another session, which has not entered the epoch.
#[tokio::test(flavor = "multi_thread")]
async fn m19_a_pooler_whose_many_sessions_take_turns_is_used() {
    let url = migrated().await;
    let real = lockapi_sqlx::connector_url(&url).expect("a connector");
    let pooler = Pooler::new(real, 40, Turns::RoundRobin);
    let backend = connect(pooler, options()).await.expect("a backend");
    let lease = LeaseOptions::new(Duration::from_secs(30)).renewed_by_hand();
    let lease = backend.lease("turns", lease).expect("a lease");
    for _ in 0..60 {
        let guard = lease.acquire().await.expect("acquired");
        guard.release().await.expect("released");
    }
}

/// Connecting has a time limit, and takes many round trips.
#[tokio::test(flavor = "multi_thread")]
async fn m19_what_is_found_on_the_way_is_a_fault() {
    let url = migrated().await;
    let real = || lockapi_sqlx::connector_url(&url).expect("a connector");
    let told = async |connector: Pooler<_>| {
        let reached = lockapi::admin::reach(connector).await.expect("reached");
        let mut connection = reached.connection.expect("a connection");
        let age = Duration::from_mins(5);
        let examined = lockapi::admin::examine(&mut connection, age).await;
        examined.expect("examined");
        let faults = reached.findings.iter().map(|finding| finding.fault);
        faults.collect::<Vec<_>>()
    };
    for turns in [Turns::LastUsed, Turns::RoundRobin] {
        assert_eq!(told(Pooler::new(real(), 3, turns)).await, ["pooler"]);
        let own = Pooler::new(real(), 3, turns);
        own.set_exclusive(true);
        assert!(told(own).await.is_empty());
    }
    for engine in [Engine::LocksAreStubs, Engine::NoLocks, Engine::Version12] {
        let foreign = Foreign::new(real(), engine);
        let reached = lockapi::admin::reach(foreign).await.expect("reached");
        let found: Vec<_> = reached.findings.iter().map(|it| it.fault).collect();
        assert_eq!(found, ["refused_server"], "{engine:?}");
        assert!(reached.connection.is_some(), "{engine:?}");
    }
    let two = Foreign::new(real(), Engine::TwoServers);
    let error = lockapi::admin::reach(two).await.expect_err("two servers");
    says(&error.to_string(), &["two servers"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn m19_a_server_far_away_is_used() {
    let url = migrated().await;
    let real = lockapi_sqlx::connector_url(&url).expect("a connector");
    let far = Slow::new(real, Duration::from_millis(100));
    // On a busy machine it takes longer to connect.
    let options = options().timeout(Duration::from_secs(30));
    let backend = connect(far, options).await.expect("a backend");
    assert!(backend.capabilities().session_locks);
    let door = backend.mutex("door").expect("a mutex");
    door.lock()
        .await
        .expect("locked")
        .unlock()
        .await
        .expect("unlocked");
}

/// However long the way to it, what it grants is compared before it is used.
#[tokio::test(flavor = "multi_thread")]
async fn m19_locks_that_are_given_to_everybody_are_refused_behind_a_slow_pooler() {
    let mut refused = Vec::new();
    for round_trip in [0, 75, 150].map(Duration::from_millis) {
        for turns in [Turns::LastUsed, Turns::RoundRobin] {
            refused.push(tokio::spawn(async move {
                let real = lockapi_sqlx::connector_url(&url()).expect("a connector");
                let foreign = Foreign::new(real, Engine::LocksAreStubs);
                let pooler = Pooler::new(foreign, 3, turns);
                // On a busy machine it takes longer to connect.
                let options = options().timeout(Duration::from_secs(30));
                let far = connect(Slow::new(pooler, round_trip), options);
                let error = far.await.expect_err("it must be refused");
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{round_trip:?}");
                says(&error.to_string(), &["the same lock", "of the transaction"]);
            }));
        }
    }
    for one in refused {
        one.await.expect("refused");
    }
}

/// Of two sessions each statement is given any: eleven in a row have to be lucky before a program is mistaken. With half
/// as many it happens once in thirty times.
#[tokio::test(flavor = "multi_thread")]
async fn m19_a_pooler_that_draws_sessions_is_detected() {
    let url = migrated().await;
    let real = lockapi_sqlx::connector_url(&url).expect("a connector");
    let pooler = Pooler::new(real, 2, Turns::Drawn(1));
    let mut unknown = 0;
    for _ in 0..250 {
        let backend = connect(pooler.join(), options()).await;
        let backend = backend.expect("a backend");
        unknown += u32::from(backend.capabilities().session_locks);
        // What it still does in the background would draw as well.
        backend.close().await.expect("closed");
    }
    assert!(unknown <= 1, "{unknown} were taken for direct");
}

/// Programs that start together take the few sessions of a pooler from each other.
#[tokio::test(flavor = "multi_thread")]
async fn m19_many_connect_through_a_pooler_that_is_busy() {
    let url = migrated().await;
    for turns in [Turns::LastUsed, Turns::RoundRobin] {
        let real = lockapi_sqlx::connector_url(&url).expect("a connector");
        let pooler = Pooler::new(real, 2, turns);
        let connecting = (0..8).map(|_| connect(pooler.join(), options()));
        let connecting: Vec<_> = connecting.map(tokio::spawn).collect();
        let mut unknown = 0;
        for connected in connecting {
            let backend = connected.await.expect("the task");
            let backend = backend.unwrap_or_else(|error| panic!("{turns:?}: {error}"));
            unknown += usize::from(backend.capabilities().session_locks);
        }
        // Where others take turns in between, one of two sessions is as if it were drawn.
        assert!(unknown <= 1, "{turns:?}: {unknown}");
    }
}

/// Its mode was changed while programs hold locks. Each finds its session gone, or is answered there, but none is
/// answered in the session of another.
#[tokio::test(flavor = "multi_thread")]
async fn m19_a_pooler_that_begins_to_share_sessions_gives_no_lock_twice() {
    let url = migrated().await;
    for turns in [Turns::LastUsed, Turns::RoundRobin] {
        let real = lockapi_sqlx::connector_url(&url).expect("a connector");
        let pooler = Pooler::new(real, 16, turns);
        pooler.set_exclusive(true);
        let options = options();
        let one = connect(pooler.join(), options.clone()).await;
        let other = connect(pooler.join(), options).await;
        let (one, other) = (one.expect("a backend"), other.expect("a backend"));
        let of = |backend: &Arc<dyn Backend>, key: &str| backend.mutex(key).expect("a mutex");
        let held = of(&one, "held").lock().await.expect("locked");
        let theirs = of(&other, "theirs").lock().await.expect("locked");
        pooler.set_exclusive(false);
        let (mut granted, mut refused) = (0, 0);
        for n in 0..60 {
            let key = format!("k{n}");
            let (here, there) = (of(&one, &key), of(&other, &key));
            let (held_by, theirs_by) = (of(&other, "held"), of(&one, "theirs"));
            let (here, there, held_by, theirs_by) = tokio::join!(
                here.try_lock(),
                there.try_lock(),
                held_by.try_lock(),
                theirs_by.try_lock()
            );
            // The sessions live on, and with them what was locked there.
            for again in [held_by, theirs_by] {
                assert!(!matches!(again, Ok(Some(_))), "{turns:?}: given twice");
            }
            let both = [&here, &there].map(|got| matches!(got, Ok(Some(_))));
            assert_ne!(both, [true, true], "{turns:?}: {key} is given twice");
            for answer in [here, there] {
                match answer {
                    Ok(None) => {}
                    Ok(Some(guard)) => {
                        granted += 1;
                        // It may be lost by now.
                        let _told = guard.unlock().await;
                    }
                    Err(error) => {
                        refused += 1;
                        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                    }
                }
            }
        }
        assert!(
            refused > 0,
            "{turns:?}: sessions are not shared, {granted} granted"
        );
        assert!(
            held.is_lost() || theirs.is_lost(),
            "{turns:?}: nobody was told"
        );
    }
}
