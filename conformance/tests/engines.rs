//! Servers and poolers that speak the protocol and differ from `PostgreSQL`: what a backend says of them.
//!
//! None of them runs here. Each is a real server behind a connector that behaves as the documentation of another
//! engine, or its bug reports, say; see `docs/engines.md`.

#[path = "engines/foreign.rs"]
mod foreign;
#[path = "engines/pooler.rs"]
mod pooler;

use std::sync::Arc;
use std::time::Duration;

use lockapi::driver::Connector;
use lockapi::lease::LeaseOptions;
use lockapi::queue::{Claim, Job};
use lockapi::{Backend, BackendOptions, Error, ErrorKind, Result};
use lockapi_conformance::cluster::Cluster;

use foreign::{Engine, Foreign};
use pooler::{Pooler, Turns};

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

#[tokio::test(flavor = "multi_thread")]
async fn m19_locks_that_nobody_is_given_are_refused() {
    let text = refusal(Engine::NoLockIsFree).await;
    says(&text, &["refused a lock that nobody had"]);
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
    says(&text, &["version 13", "PostgreSQL 12.22"]);
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
