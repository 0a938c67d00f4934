//! Renewals and releases that are carried out and never answered.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use futures_util::FutureExt;

use crate::blocking::{Backend, Lease, block_on};
use crate::driver::{BackgroundTask, Call, Connection, Connector, Mode, Operation, Rows, Script};
use crate::engine::clock::Clock;
use crate::engine::{BackendOptions, Driver, ManualClock, start_with};
use crate::error::{ErrorKind, Failure};
use crate::lease::{LeaseOptions, Release, Renew};
use crate::memory::{Database, Session};

const SECOND: Duration = Duration::from_secs(1);
/// Whose answers are lost.
const LOSES: [&str; 2] = [Renew::STATEMENT.name, Release::STATEMENT.name];

/// A network that loses the answers of renewals and releases while it is told to.
struct Lossy {
    database: Database,
    losing: Arc<AtomicBool>,
}

struct LossySession {
    session: Session,
    losing: Arc<AtomicBool>,
}

impl Connector for Lossy {
    type Connection = LossySession;
    type Listener = Session;

    const SERVER: bool = false;
    const THREADS: bool = true;

    async fn connect(&self, mode: Mode) -> Result<LossySession, Failure> {
        Ok(LossySession {
            session: Connector::connect(&self.database, mode).await?,
            losing: Arc::clone(&self.losing),
        })
    }

    async fn listener(&self) -> Result<Session, Failure> {
        self.database.listener().await
    }

    fn spawn(&self, name: &'static str, task: BackgroundTask) {
        self.database.spawn(name, task);
    }
}

impl Connection for LossySession {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        let rows = self.session.run(call).await?;
        if LOSES.contains(&call.name()) && self.losing.load(Ordering::Acquire) {
            pending::<()>().await;
        }
        Ok(rows)
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        self.session.script(script).await
    }
}

struct Scene {
    clock: ManualClock,
    database: Database,
    losing: Arc<AtomicBool>,
    backend: Backend,
    lease: Lease,
}

impl Scene {
    fn new() -> Self {
        let clock = ManualClock::default();
        let database = Database::with_clock(&clock);
        let losing = Arc::new(AtomicBool::new(false));
        let driver = Driver::new(Lossy {
            database: database.clone(),
            losing: Arc::clone(&losing),
        });
        let options = BackendOptions::default();
        let started = start_with("lossy", driver, options, Clock::Manual(clock.clone()));
        let backend = Backend::connect(started).unwrap();
        let options = LeaseOptions::new(30 * SECOND);
        Self {
            clock,
            database,
            losing,
            lease: backend.lease("a", options).unwrap(),
            backend,
        }
    }

    /// How long the lease is held at the server if it is not renewed.
    fn remaining(&self) -> Option<Duration> {
        let held = self
            .database
            .inspect(|model| model.lease_held("default", "a"))?;
        Some(Duration::from_micros(held.remaining.unsigned_abs()))
    }
}

#[test]
fn a_renewal_that_is_never_answered_leaves_nothing_held() {
    let scene = Scene::new();
    let guard = scene.lease.acquire().unwrap();
    scene.losing.store(true, Ordering::Release);
    scene.clock.advance(20 * SECOND);
    let held = scene.remaining().expect("held");
    assert!(held > 15 * SECOND, "no renewal had its effect");
    assert!(!guard.is_lost());
    scene.clock.advance(10 * SECOND);
    assert!(guard.is_lost());
    // An answer may take some seconds, and so may another connection. It would end by itself after 20 at least.
    let freed = (0..15).any(|_| {
        scene.clock.advance(SECOND);
        scene.remaining().is_none()
    });
    assert!(freed, "still held");
}

#[test]
fn a_release_whose_answer_was_lost_is_no_loss_when_another_holds_the_lease() {
    let scene = Scene::new();
    let guard = scene.lease.acquire().unwrap();
    let other = Backend::connect(scene.database.connect()).unwrap();
    let other = other.lease("a", LeaseOptions::new(30 * SECOND)).unwrap();
    scene.losing.store(true, Ordering::Release);
    let released = thread::scope(|scope| {
        let releasing = scope.spawn(|| guard.release());
        let _next = loop {
            match other.try_acquire().unwrap() {
                Some(next) => break next,
                None => thread::yield_now(),
            }
        };
        scene.losing.store(false, Ordering::Release);
        while !releasing.is_finished() {
            scene.clock.advance(SECOND / 4);
            thread::yield_now();
        }
        releasing.join().unwrap()
    });
    let error = released.expect_err("the answer was lost");
    assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
}

#[test]
fn a_release_that_waits_until_the_lease_has_ended_is_no_loss() {
    let scene = Scene::new();
    let acquire = |key: &str, ttl| {
        let lease = scene.backend.inner().lease(key, LeaseOptions::new(ttl));
        block_on(lease.unwrap().acquire()).unwrap()
    };
    let (first, second) = (acquire("a", 30 * SECOND), acquire("second", 2 * SECOND));
    scene.losing.store(true, Ordering::Release);
    let (mut first, mut second) = (first.release(), second.release());
    assert!((&mut first).now_or_never().is_none());
    while scene.remaining().is_some() {
        thread::yield_now();
    }
    assert!((&mut second).now_or_never().is_none(), "it does not wait");
    scene.losing.store(false, Ordering::Release);
    let mut seconds = 0;
    let released = loop {
        scene.clock.advance(SECOND);
        seconds += 1;
        drop((&mut first).now_or_never());
        if let Some(released) = (&mut second).now_or_never() {
            break released;
        }
    };
    assert!(seconds > 2, "the lease has not ended");
    let error = released.expect_err("it had ended by then");
    assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
}

/// What nobody holds any more was released, whoever did it.
#[test]
fn close_reports_no_release_that_found_nothing() {
    for is_repeated in [true, false] {
        let scene = Scene::new();
        let key = if is_repeated { "a" } else { "second" };
        let lease = |backend: &Backend| {
            let ttl = if is_repeated { 30 } else { 2 } * SECOND;
            let lease = backend.lease(key, LeaseOptions::new(ttl)).unwrap();
            loop {
                match lease.try_acquire().unwrap() {
                    Some(held) => break held,
                    None => thread::yield_now(),
                }
            }
        };
        let _held = lease(&scene.backend);
        let first = (!is_repeated).then(|| scene.lease.acquire().unwrap());
        let other = Backend::connect(scene.database.connect()).unwrap();
        scene.losing.store(true, Ordering::Release);
        // One that is under way has the other one wait.
        let first = first.map(|first| thread::spawn(move || first.release()));
        while !is_repeated && scene.remaining().is_some() {
            thread::yield_now();
        }
        let mut closing = scene.backend.inner().close();
        assert!((&mut closing).now_or_never().is_none());
        let _next = is_repeated.then(|| lease(&other));
        scene.losing.store(false, Ordering::Release);
        let closed = loop {
            scene.clock.advance(SECOND / 4);
            if let Some(closed) = (&mut closing).now_or_never() {
                break closed;
            }
            thread::yield_now();
        };
        closed.expect("nothing is held");
        assert!(first.is_none_or(|first| first.join().unwrap().is_ok()));
    }
}
