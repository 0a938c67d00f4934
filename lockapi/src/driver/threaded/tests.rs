//! Drivers that are slow, silent, or panic.

use std::collections::HashSet;
use std::sync::mpsc::{self, Receiver, Sender};

use super::host::PATIENCE;
use super::*;
use crate::BackendOptions;
use crate::blocking::block_on;
use crate::driver::{BorrowedConnection, Operation, Row, Type};
use crate::engine::start;
use crate::wait::unless;
use tokio::sync::Notify;

const WAIT: Duration = Duration::from_secs(10);

/// Connects at once; a script blocks until it is told to go on.
struct Driver(Mutex<Vec<Slow>>);

struct Slow {
    go_on: Receiver<()>,
    dropped: Sender<String>,
}

impl BlockingConnector for Driver {
    type Connection = Slow;

    fn connect(&self, _: Mode) -> Result<Slow, Failure> {
        let next = lock(&self.0).pop();
        next.ok_or_else(|| Failure::connect(None, "no more"))
    }
}

impl BlockingConnection for Slow {
    fn run(&mut self, _: &'static Statement, _: Vec<Value>) -> Result<Rows, Failure> {
        panic!("a driver that panics")
    }

    fn script(&mut self, _: Script) -> Result<(), Failure> {
        let told = self.go_on.recv();
        told.map_err(|_| Failure::statement(None, true, "the server is gone"))
    }
}

impl BlockingListener for Slow {
    fn next(&mut self, _: Duration) -> Result<Option<String>, Failure> {
        let told = self.go_on.recv();
        Ok(told.is_ok().then(|| "told".to_owned()))
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        let thread = thread::current().name().unwrap_or_default().to_owned();
        // A test that is over does not look.
        let _over = self.dropped.send(thread);
    }
}

#[derive(Clone)]
struct Nothing;

impl Operation for Nothing {
    type Output = ();

    const STATEMENT: Statement = Statement {
        name: "nothing",
        sql: "",
        params: &[],
        columns: &[Type::Int],
    };

    fn params(_: &[Self]) -> Vec<Value> {
        Vec::new()
    }

    fn decode(_: &[Self], _: Rows) -> Result<Vec<()>, Failure> {
        Ok(Vec::new())
    }

    fn model(_: &[Self], _: &mut crate::memory::ModelState, _: u64) -> Option<Rows> {
        None
    }
}

fn slow() -> (Slow, Sender<()>, Receiver<String>) {
    let (go, go_on) = mpsc::channel();
    let (dropped, drops) = mpsc::channel();
    (Slow { go_on, dropped }, go, drops)
}

#[test]
fn what_is_joined_with_a_call_runs_before_the_call_blocks() {
    let (slow, go, drops) = slow();
    let threaded = Arc::new(Threaded::new(Driver(Mutex::new(vec![slow]))));
    let (sender, told) = mpsc::channel();
    let shared = Arc::clone(&threaded);
    threaded.spawn(
        "task",
        Box::pin(async move {
            let mut connection = shared.connect(Mode::Direct).await.unwrap();
            let telling = async { sender.send("first").unwrap() };
            let (ran, ()) =
                futures_util::future::join(connection.script(Script::Run("blocks")), telling).await;
            ran.unwrap();
            sender.send("second").unwrap();
        }),
    );
    assert_eq!(told.recv_timeout(WAIT), Ok("first"));
    assert!(told.try_recv().is_err());
    go.send(()).unwrap();
    assert_eq!(told.recv_timeout(WAIT), Ok("second"));
    assert_eq!(drops.recv_timeout(WAIT), Ok("task".to_owned()));
}

#[test]
fn a_task_goes_on_without_a_call_that_does_not_return() {
    let ((first, go, drops), (second, _go, _)) = (slow(), slow());
    let threaded = Arc::new(Threaded::new(Driver(Mutex::new(vec![second, first]))));
    let stop = Arc::new(Notify::new());
    let (sender, told) = mpsc::channel();
    let (shared, stopped) = (Arc::clone(&threaded), Arc::clone(&stop));
    threaded.spawn(
        "task",
        Box::pin(async move {
            let mut connection = shared.connect(Mode::Direct).await.unwrap();
            let outcome =
                unless(stopped.notified(), connection.script(Script::Run("blocks"))).await;
            assert!(outcome.is_none());
            assert!(
                connection
                    .script(Script::Run("again"))
                    .await
                    .unwrap_err()
                    .broken
            );
            drop(connection);
            let second = shared.connect(Mode::Direct).await;
            sender.send(second.is_ok()).unwrap();
        }),
    );
    thread::sleep(PATIENCE + Duration::from_millis(100));
    stop.notify_waiters();
    assert_eq!(told.recv_timeout(WAIT), Ok(true));
    assert_eq!(threaded.stuck.load(Ordering::Relaxed), 1);
    assert!(drops.try_recv().is_err(), "dropped while its call runs");
    go.send(()).unwrap();
    assert_eq!(drops.recv_timeout(WAIT), Ok("task".to_owned()));
    let since = Instant::now();
    while threaded.stuck.load(Ordering::Relaxed) > 0 {
        assert!(since.elapsed() < WAIT);
        thread::yield_now();
    }
}

#[test]
fn a_driver_that_panics_ends_its_task() {
    let (slow, _go, _) = slow();
    let threaded = Arc::new(Threaded::new(Driver(Mutex::new(vec![slow]))));
    let (sender, told) = mpsc::channel::<()>();
    let shared = Arc::clone(&threaded);
    threaded.spawn(
        "task",
        Box::pin(async move {
            let mut connection = shared.connect(Mode::Direct).await.unwrap();
            let answer = connection.perform(&[Nothing]).await;
            drop(answer);
            sender.send(()).unwrap();
        }),
    );
    let ended = told.recv_timeout(WAIT);
    assert_eq!(ended, Err(mpsc::RecvTimeoutError::Disconnected));
}

#[test]
fn calls_left_behind_do_not_keep_a_backend_from_its_connections() {
    let threaded = Threaded::new(Driver(Mutex::default()));
    let connect = || match block_on(threaded.connect(Mode::Direct)) {
        Err(failure) => failure.source.to_string(),
        Ok(_) => panic!("there is nothing to connect to"),
    };
    threaded.stuck.store(MOST_STUCK - 1, Ordering::Relaxed);
    assert!((0..100).all(|_| connect() == "no more"));
    threaded.stuck.store(MOST_STUCK, Ordering::Relaxed);
    assert!(
        connect().contains("256 calls"),
        "not more than one a second"
    );
}

#[test]
fn a_wake_soon_after_the_call_began_is_not_lost() {
    let ((first, _go, _drops), (second, _other_go, _)) = (slow(), slow());
    let threaded = Arc::new(Threaded::new(Driver(Mutex::new(vec![second, first]))));
    let stop = Arc::new(Notify::new());
    let (sender, told) = mpsc::channel();
    let (shared, stopped) = (Arc::clone(&threaded), Arc::clone(&stop));
    threaded.spawn(
        "task",
        Box::pin(async move {
            let mut connection = shared.connect(Mode::Direct).await.unwrap();
            let outcome =
                unless(stopped.notified(), connection.script(Script::Run("blocks"))).await;
            sender.send(outcome.is_none()).unwrap();
        }),
    );
    thread::sleep(PATIENCE / 2);
    stop.notify_waiters();
    assert_eq!(told.recv_timeout(WAIT), Ok(true));
}

/// A server that falls silent after so many calls, also for those who clean up.
struct Falls {
    left: Arc<AtomicUsize>,
    delay: Duration,
    /// The locks of the probe, and how many sessions there were.
    tried: Arc<Mutex<(HashSet<i64>, i64)>>,
}

struct Fallen {
    left: Arc<AtomicUsize>,
    marker: String,
    tried: Arc<Mutex<(HashSet<i64>, i64)>>,
    pid: i64,
}

impl Fallen {
    fn count(&self) {
        let left = self
            .left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        while left.is_err() {
            thread::park();
        }
    }
}

impl BlockingConnector for Falls {
    type Connection = BorrowedConnection<Fallen>;

    fn connect(&self, mode: Mode) -> Result<Self::Connection, Failure> {
        thread::sleep(self.delay);
        lock(&self.tried).1 += 1;
        let fallen = Fallen {
            left: Arc::clone(&self.left),
            marker: String::new(),
            tried: Arc::clone(&self.tried),
            pid: lock(&self.tried).1,
        };
        BorrowedConnection::take(fallen, mode)
    }
}

impl BlockingConnection for Fallen {
    fn run(&mut self, statement: &'static Statement, params: Vec<Value>) -> Result<Rows, Failure> {
        self.count();
        let none = || Value::Texts(Vec::new());
        let row = match (statement.name, &params[..]) {
            ("engine.session_settings", _) => {
                let none = || Value::Int(0);
                vec![
                    Value::Bool(false),
                    none(),
                    none(),
                    none(),
                    Value::Bool(false),
                    Value::Bool(false),
                    Value::Bool(false),
                ]
            }
            ("engine.marker", [Value::Text(marker), Value::Text(what), Value::Int(key)]) => {
                if !marker.is_empty() {
                    self.marker.clone_from(marker);
                }
                let locked = what == "give back" || lock(&self.tried).0.insert(*key);
                vec![
                    Value::Text(self.marker.clone()),
                    Value::Bool(locked),
                    Value::Int(self.pid),
                    Value::Int(150_000),
                    Value::Text("a server that falls".to_owned()),
                ]
            }
            ("driver.save_settings", _) => vec![none(), none()],
            _ => vec![Value::Int(0)],
        };
        Ok(vec![Row(row)])
    }

    fn script(&mut self, _: Script) -> Result<(), Failure> {
        self.count();
        Ok(())
    }
}

impl BlockingListener for Fallen {
    fn next(&mut self, at_most: Duration) -> Result<Option<String>, Failure> {
        thread::sleep(at_most);
        Ok(None)
    }
}

/// Whether connecting fails in time with a server that falls silent after so many calls.
fn fails_in_time(calls: usize, delay: Duration) -> bool {
    let (sender, told) = mpsc::channel();
    thread::spawn(move || {
        let falls = Falls {
            left: Arc::new(AtomicUsize::new(calls)),
            delay,
            tried: Arc::default(),
        };
        let options = BackendOptions::default().timeout(Duration::from_secs(2));
        let outcome = block_on(start("silent", Threaded::new(falls), options));
        // A test that is over does not look.
        let _over = sender.send(outcome.is_err());
    });
    told.recv_timeout(WAIT) == Ok(true)
}

#[test]
fn a_server_that_falls_silent_during_the_probe_is_given_up() {
    let attempts: Vec<_> = (0..24)
        .map(|calls| {
            (
                calls,
                thread::spawn(move || fails_in_time(calls, Duration::ZERO)),
            )
        })
        .collect();
    let hung: Vec<_> = attempts
        .into_iter()
        .filter_map(|(calls, attempt)| (!attempt.join().unwrap()).then_some(calls))
        .collect();
    assert!(
        hung.is_empty(),
        "silent after these numbers of calls: {hung:?}"
    );
}

#[test]
fn a_server_that_is_silent_after_a_slow_connect_is_given_up() {
    assert!(fails_in_time(0, Duration::from_millis(800)));
}

/// Says when it is dropped.
struct Ending(Falls, Sender<()>);

impl BlockingConnector for Ending {
    type Connection = BorrowedConnection<Fallen>;

    fn connect(&self, mode: Mode) -> Result<Self::Connection, Failure> {
        self.0.connect(mode)
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.1.send(()).unwrap();
    }
}

#[test]
fn a_connector_goes_with_its_backend() {
    let (sender, dropped) = mpsc::channel();
    let falls = Falls {
        left: Arc::new(AtomicUsize::new(usize::MAX)),
        delay: Duration::ZERO,
        tried: Arc::default(),
    };
    let threaded = Threaded::new(Ending(falls, sender));
    let backend = block_on(start("ending", threaded, BackendOptions::default())).unwrap();
    let mutex = backend.open_mutex("door".into()).unwrap();
    // Its answers are not those of a server, so the call fails.
    block_on(mutex.lock()).unwrap_err();
    drop((mutex, backend));
    assert_eq!(dropped.recv_timeout(WAIT), Ok(()));
}

#[test]
fn a_connector_is_dropped_on_a_thread_of_its_own() {
    struct NotedLock(mpsc::Sender<thread::ThreadId>);

    impl Drop for NotedLock {
        fn drop(&mut self) {
            self.0.send(thread::current().id()).unwrap();
        }
    }

    impl BlockingConnector for NotedLock {
        type Connection = Slow;

        fn connect(&self, _: Mode) -> Result<Slow, Failure> {
            Err(Failure::connect(None, "no"))
        }
    }

    let (sender, dropped) = mpsc::channel();
    drop(Threaded::new(NotedLock(sender)));
    assert_ne!(dropped.recv_timeout(WAIT).unwrap(), thread::current().id());
}
