use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use super::super::batcher::Batcher;
use super::super::clock::{Clock, ManualClock};
use super::super::notify::Notify;
use super::super::timer::Timer;
use super::*;
use crate::blocking::block_on;
use crate::driver::{self, Connector};
use crate::engine::Driver;
use crate::memory::{Database, Session};

/// Counts the listeners that are opened.
struct Counting {
    database: Database,
    opened: Arc<AtomicUsize>,
}

impl Connector for Counting {
    type Connection = Session;
    type Listener = Session;

    async fn connect(&self, mode: Mode) -> Result<Session, Failure> {
        Connector::connect(&self.database, mode).await
    }

    async fn listener(&self) -> Result<Session, Failure> {
        self.opened.fetch_add(1, Ordering::SeqCst);
        self.database.listener().await
    }

    fn spawn(&self, name: &'static str, task: driver::BackgroundTask) {
        self.database.spawn(name, task);
    }
}

/// Whether a subscriber was notified.
struct Subscribed {
    flag: Arc<AtomicBool>,
    _subscription: Subscription,
}

/// A process with its task of statements, on a clock that is moved by hand.
struct Process {
    notifier: Notifier,
    batcher: Arc<Batcher>,
    opened: Arc<AtomicUsize>,
    clock: ManualClock,
    database: Database,
}

impl Process {
    fn new(mode: Mode) -> Self {
        let clock = ManualClock::default();
        let database = Database::with_clock(&clock);
        let opened = Arc::new(AtomicUsize::new(0));
        let counting = Counting {
            database: database.clone(),
            opened: Arc::clone(&opened),
        };
        let timer = Timer::start(&Clock::Manual(clock.clone())).unwrap();
        let timeout = Duration::from_secs(5);
        let connections = Arc::new(Connections::new(
            Driver::new(counting),
            timer,
            mode,
            timeout,
        ));
        Self {
            notifier: Notifier::new(Arc::clone(&connections)),
            batcher: Batcher::new(connections),
            opened,
            clock,
            database,
        }
    }

    fn subscribe(&self, topic: i64) -> Subscribed {
        let flag = Arc::new(AtomicBool::new(false));
        let flag_clone = Arc::clone(&flag);
        let subscription = self.notifier.subscribe(topic, move || {
            flag_clone.store(true, Ordering::SeqCst);
        });
        Subscribed {
            flag,
            _subscription: subscription,
        }
    }

    /// Subscribes, and waits until what was missed before cannot be told any more.
    fn listening(&self, topic: i64) -> Subscribed {
        let subscription = self.subscribe(topic);
        eventually(|| self.notifier.listens());
        soon(&subscription);
        subscription
    }

    fn notify(&self, topic: i64) {
        block_on(self.batcher.call(Notify(topic))).unwrap();
    }

    /// Lets time pass until it is told.
    fn notified_in_time(&self, subscription: &Subscribed, step: Duration) {
        eventually(|| {
            self.clock.advance(step);
            is_notified(subscription)
        });
    }

    fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.notifier.close();
        self.batcher.close();
    }
}

fn eventually(check: impl Fn() -> bool) {
    let start = Instant::now();
    while !check() {
        assert!(start.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether it was told since this was last asked.
fn is_notified(subscribed: &Subscribed) -> bool {
    subscribed.flag.swap(false, Ordering::SeqCst)
}

/// Waits until it is told.
fn soon(subscription: &Subscribed) {
    eventually(|| is_notified(subscription));
}

#[test]
fn subscribers_of_the_topic_are_notified() {
    let process = Process::new(Mode::Direct);
    let (one, other) = (process.listening(7), process.subscribe(7));
    let neighbours = [6, 8, i64::MIN, i64::MAX].map(|topic| process.subscribe(topic));
    process.notify(7);
    soon(&one);
    soon(&other);
    assert!(!neighbours.iter().any(is_notified), "of another topic");
    assert!(!is_notified(&one), "once");
    process.notify(i64::MAX);
    soon(&neighbours[3]);
    assert_eq!(process.opened(), 1);
}

#[test]
fn a_listener_that_connects_again_tells_all() {
    let process = Process::new(Mode::Direct);
    let (one, other) = (process.listening(1), process.subscribe(2));
    process.database.sever();
    eventually(|| !process.notifier.listens());
    assert!(!is_notified(&one));
    process.notified_in_time(&one, PAUSES.0);
    soon(&other);
    assert!(process.notifier.listens());
    process.notify(2);
    soon(&other);
}

#[test]
fn a_server_that_was_replaced_is_not_listened_to() {
    let process = Process::new(Mode::Direct);
    let one = process.listening(1);
    // Its session may be silent, and does not end.
    process
        .notifier
        .connections
        .epochs
        .advanced
        .notify_waiters();
    eventually(|| process.opened() == 2);
    soon(&one);
}

#[test]
fn a_server_that_is_away_is_asked_more_and_more_rarely() {
    let process = Process::new(Mode::Direct);
    let subscription = process.listening(1);
    process.database.set_reachable(false);
    eventually(|| !process.notifier.listens());
    for _ in 0..60 {
        process.clock.advance(Duration::from_secs(1));
        std::thread::sleep(Duration::from_millis(5));
    }
    let attempts = process.opened();
    assert!(attempts < 30, "{attempts} in a minute");
    assert!(!is_notified(&subscription));
    process.database.set_reachable(true);
    process.notified_in_time(&subscription, PAUSES.0);
}

#[test]
fn a_connection_is_replaced_that_may_be_dead() {
    let process = Process::new(Mode::Direct);
    let subscription = process.listening(1);
    process.notified_in_time(&subscription, LIFETIME);
    assert!(process.opened() > 1);
    eventually(|| process.database.sessions() == 1);
}

#[test]
fn nobody_listens_for_nobody() {
    let process = Process::new(Mode::Direct);
    assert_eq!(process.opened(), 0);
    drop(process.listening(1));
    assert!(process.notifier.shared.lock().callbacks.is_empty());
    eventually(|| {
        process.clock.advance(LIFETIME);
        !process.notifier.shared.lock().running
    });
    assert_eq!((process.opened(), process.database.sessions()), (1, 0));
    let _subscription = process.listening(1);
    assert_eq!(process.opened(), 2);
    process.notifier.close();
    eventually(|| process.database.sessions() == 0);
    let late = process.subscribe(2);
    assert!(!process.notifier.listens() && !is_notified(&late));
    assert_eq!(process.opened(), 2);
}

#[test]
fn behind_a_proxy_nobody_listens() {
    let process = Process::new(Mode::Proxied);
    let subscription = process.subscribe(1);
    assert!(!process.notifier.shared.lock().running);
    process.notify(1);
    assert!(!process.notifier.listens() && !is_notified(&subscription));
    assert_eq!(process.opened(), 0);
}
