//! Background tasks that cannot be started, panic, or cannot connect.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{BackendOptions, start};
use crate::MutexGuard;
use crate::backend::Backend;
use crate::blocking::block_on;
use crate::driver::{BackgroundTask, Call, Connection, Connector, Listener, Mode, Rows, Script};
use crate::error::{ErrorKind, Failure};
use crate::lease::LeaseOptions;
use crate::memory::{Database, Session};
use crate::queue::{Claim, Job};

/// What goes wrong next.
#[derive(Clone, Default)]
struct Faults(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// A task of this name is dropped instead of started, once.
    unstarted: Mutex<Option<&'static str>>,
    /// Sending this statement panics, once.
    panics: Mutex<Option<&'static str>>,
    unconnected: AtomicBool,
}

fn take(place: &Mutex<Option<&'static str>>, name: &str) -> bool {
    let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
    place.take_if(|it| *it == name).is_some()
}

impl Faults {
    fn unstarted(&self, name: &'static str) {
        *self.0.unstarted.lock().unwrap() = Some(name);
    }

    fn panics(&self, statement: &'static str) {
        *self.0.panics.lock().unwrap() = Some(statement);
    }

    fn happened(&self) -> bool {
        let is_none = |place: &Mutex<Option<&'static str>>| place.lock().unwrap().is_none();
        is_none(&self.0.unstarted) && is_none(&self.0.panics)
    }
}

struct Faulty(Database, Faults);

struct OpenConnection(Session, Faults);

impl Connector for Faulty {
    type Connection = OpenConnection;
    type Listener = OpenConnection;

    async fn connect(&self, mode: Mode) -> Result<OpenConnection, Failure> {
        if self.1.0.unconnected.load(Ordering::Relaxed) {
            return Err(Failure::connect(Some("53300".into()), "too many clients"));
        }
        let session = Connector::connect(&self.0, mode).await?;
        Ok(OpenConnection(session, self.1.clone()))
    }

    async fn listener(&self) -> Result<OpenConnection, Failure> {
        Connector::connect(self, Mode::Direct).await
    }

    fn spawn(&self, name: &'static str, task: BackgroundTask) {
        if !take(&self.1.0.unstarted, name) {
            self.0.spawn(name, task);
        }
    }
}

impl Connection for OpenConnection {
    async fn run(&mut self, call: Call<'_>) -> Result<Rows, Failure> {
        assert!(!take(&self.1.0.panics, call.name()), "by the test");
        self.0.run(call).await
    }

    async fn script(&mut self, script: Script) -> Result<(), Failure> {
        self.0.script(script).await
    }
}

impl Listener for OpenConnection {
    async fn next(&mut self) -> Result<String, Failure> {
        self.0.next().await
    }
}

fn connect(options: BackendOptions) -> (Arc<dyn Backend>, Database, Faults) {
    let (database, faults) = (Database::new(), Faults::default());
    let faulty = Faulty(database.clone(), faults.clone());
    let backend = block_on(start("faulty", faulty, options)).unwrap();
    (backend, database, faults)
}

fn try_lock(backend: &Arc<dyn Backend>, key: &str) -> crate::Result<Option<Box<dyn MutexGuard>>> {
    block_on(backend.mutex(key).unwrap().try_lock())
}

fn job() -> Job {
    Job::new("a", &1).unwrap()
}

fn soon(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(10), "not {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn when_the_main_session_dies_its_guards_are_told_and_another_is_opened() {
    let (backend, database, faults) = connect(BackendOptions::default());
    let guard = try_lock(&backend, "a").unwrap().unwrap();
    faults.panics("mutex.lock_request");
    // What was under way is tried once more, on the new session.
    assert!(try_lock(&backend, "b").unwrap().is_some());
    assert!(faults.happened());
    block_on(guard.lost());
    assert_eq!(
        block_on(guard.unlock()).unwrap_err().kind(),
        ErrorKind::Lost
    );
    assert!(
        try_lock(&backend, "a").unwrap().is_some(),
        "it is free again"
    );
    // The two marks of the session are left.
    soon("released", || database.inspect(|model| model.locks() <= 2));
}

#[test]
fn an_unlock_that_the_main_session_dies_with_is_answered() {
    let (backend, _, faults) = connect(BackendOptions::default());
    let guard = try_lock(&backend, "a").unwrap().unwrap();
    faults.panics("mutex.lock_request");
    assert_eq!(
        block_on(guard.unlock()).unwrap_err().kind(),
        ErrorKind::Lost
    );
    assert!(try_lock(&backend, "a").unwrap().is_some());
}

#[test]
fn a_session_that_waits_dies_alone() {
    for panics in [true, false] {
        let (backend, database, faults) = connect(BackendOptions::default());
        let other = block_on(database.connect()).unwrap();
        let theirs = try_lock(&other, "theirs").unwrap().unwrap();
        let own = try_lock(&backend, "own").unwrap().unwrap();
        if panics {
            faults.panics("mutex.wait");
        } else {
            faults.unstarted("lockapi-waiter");
        }
        let waits = Arc::clone(&backend);
        let waiting = std::thread::spawn(move || block_on(waits.mutex("theirs").unwrap().lock()));
        soon("waited", || faults.happened());
        block_on(theirs.unlock()).unwrap();
        block_on(waiting.join().unwrap().unwrap().unlock()).unwrap();
        assert!(!own.is_lost());
        block_on(own.unlock()).unwrap();
    }
}

#[test]
fn what_cannot_wait_on_a_session_is_polled() {
    let (backend, database, faults) = connect(BackendOptions::default());
    let other = block_on(database.connect()).unwrap();
    let theirs = try_lock(&other, "theirs").unwrap().unwrap();
    // The main session is open; the server has no room for more.
    drop(try_lock(&backend, "own").unwrap().unwrap());
    faults.0.unconnected.store(true, Ordering::Relaxed);
    let waits = Arc::clone(&backend);
    let waiting = std::thread::spawn(move || block_on(waits.mutex("theirs").unwrap().lock()));
    std::thread::sleep(Duration::from_millis(300));
    assert!(!waiting.is_finished(), "it waits");
    block_on(theirs.unlock()).unwrap();
    block_on(waiting.join().unwrap().unwrap().unlock()).unwrap();
}

#[test]
fn a_batcher_that_dies_fails_what_it_had_and_goes_on() {
    let (backend, _, faults) = connect(BackendOptions::default());
    let mutex = try_lock(&backend, "a").unwrap().unwrap();
    let lease = backend
        .lease("a", LeaseOptions::new(Duration::from_secs(30)))
        .unwrap();
    faults.panics("lease.acquire");
    let kind = block_on(lease.try_acquire()).unwrap_err().kind();
    assert_eq!(kind, ErrorKind::Indeterminate, "it may have been sent");
    assert!(block_on(lease.try_acquire()).unwrap().is_some());
    assert!(!mutex.is_lost(), "others do not notice");
}

#[test]
fn a_batcher_that_cannot_start_fails_what_was_asked_and_starts_later() {
    let (backend, _, faults) = connect(BackendOptions::default().notes(false));
    let jobs = backend.queue("jobs").unwrap();
    faults.unstarted("lockapi-tables");
    let kind = block_on(jobs.push(job())).unwrap_err().kind();
    assert_eq!(kind, ErrorKind::Unavailable, "nothing was sent");
    block_on(jobs.push(job())).unwrap();
    // A claim whose answer was lost is asked again.
    faults.panics("queue.complete_and_claim");
    assert_eq!(block_on(jobs.claim(&Claim::new(1))).unwrap().len(), 1);
    assert!(faults.happened());
}
