//! What the suite cannot reach: lanes that never run, and what is left behind inside.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::{ManualClock, Options, start};
use crate::blocking::{self, block_on};
use crate::error::{ErrorKind, Failure};
use crate::lease::Terms;
use crate::memory::{Database, Session};
use crate::seam::{Connector, Lane, Mode};
use crate::{BackendExt, LeaseExt};

/// Runs the probe; then the runtime has shut down, and drops what it is given.
struct Gone(Database);

impl Connector for Gone {
    type Connection = Session;
    type Listener = Session;

    async fn connect(&self, mode: Mode) -> Result<Session, Failure> {
        Connector::connect(&self.0, mode).await
    }

    async fn listener(&self) -> Result<Session, Failure> {
        self.0.listener().await
    }

    fn spawn(&self, name: &'static str, lane: Lane) {
        if name == "lockapi-probe" {
            self.0.spawn(name, lane);
        }
    }
}

#[test]
fn a_lane_that_never_runs_fails_its_callers() {
    let backend = block_on(start("gone", Gone(Database::new()), Options::default())).unwrap();
    let (sender, outcome) = mpsc::channel();
    std::thread::spawn(move || {
        let mutex = backend.mutex("a").unwrap();
        sender
            .send(block_on(mutex.try_lock()).unwrap_err().kind())
            .unwrap();
        let lease = backend
            .lease("a", Terms::new(Duration::from_secs(1)))
            .unwrap();
        sender
            .send(block_on(lease.try_acquire()).unwrap_err().kind())
            .unwrap();
    });
    for _ in 0..2 {
        let kind = outcome.recv_timeout(Duration::from_secs(5));
        assert_eq!(kind, Ok(ErrorKind::Unavailable));
    }
}

#[test]
fn work_that_was_done_is_not_taken_back_by_an_outage() {
    let database = Database::new();
    let backend = blocking::Backend::connect(database.connect()).unwrap();
    let lease = backend
        .lease("a", Terms::new(Duration::from_secs(30)))
        .unwrap();
    let ran = lease.run_exclusive(|_| {
        database.set_reachable(false);
        7
    });
    assert_eq!(ran.unwrap(), Some(7));

    database.set_reachable(true);
    let backend = block_on(database.connect()).unwrap();
    let lease = backend
        .lease("b", Terms::new(Duration::from_secs(30)))
        .unwrap();
    let ran = block_on(lease.run_exclusive(async |_| {
        database.set_reachable(false);
        7
    }));
    assert_eq!(ran.unwrap(), Some(7));
}

#[test]
fn a_renewal_that_is_answered_too_late_leaves_nothing_held() {
    let clock = ManualClock::default();
    let database = Database::with_clock(&clock);
    let here = blocking::Backend::connect(database.connect()).unwrap();
    let terms = Terms::new(Duration::from_secs(30));
    let guard = here.lease("a", terms).unwrap().acquire().unwrap();
    database.set_silent(true);
    clock.advance(Duration::from_secs(10));
    // The renewal is sent by then.
    std::thread::sleep(Duration::from_millis(200));
    clock.advance(Duration::from_millis(19_500));
    guard.lost();
    database.set_silent(false);
    let start = Instant::now();
    while database.inspect(|world| world.lease_held("default", "a").is_some()) {
        assert!(start.elapsed() < Duration::from_secs(5), "still held");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_lease_is_lost_by_the_clock_and_not_by_a_thread() {
    let clock = ManualClock::default();
    let database = Database::with_clock(&clock);
    let backend = blocking::Backend::connect(database.connect()).unwrap();
    let terms = Terms::new(Duration::from_secs(30)).renewed_by_hand();
    for n in 0..200 {
        let lease = backend.lease(format!("a{n}"), terms.clone()).unwrap();
        let guard = lease.acquire().unwrap();
        clock.advance(Duration::from_secs(30));
        assert!(guard.is_lost(), "believed held after its end");
    }
}
