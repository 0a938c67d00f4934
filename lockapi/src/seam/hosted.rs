//! Blocking drivers: their calls run on threads that the lanes live on.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::call::{Call, Statement};
use super::connector::{Connection, Connector, Lane, Mode};
use super::value::{Rows, Value};
use crate::blocking::look;
use crate::error::Failure;

/// How long a call may block before another thread sees to the lane; less than the least time
/// limit of a statement, and more than a wait for a lock lasts.
const PATIENCE: Duration = Duration::from_millis(1_500);

/// How many calls of a connector may be left behind unanswered before no more are made.
const MOST_STUCK: usize = 16;

/// Opens connections of a driver whose calls block; [`Hosted`] makes a [`Connector`] of it.
///
/// All of its values are created, used and dropped on threads of the engine.
pub trait BlockingConnector: Send + Sync + 'static {
    /// A connection of the driver.
    type Connection: BlockingConnection + 'static;

    /// Opens a connection. The engine goes on without it when it takes too long.
    ///
    /// # Errors
    /// [`Failure::connect`].
    fn connect(&self, mode: Mode) -> Result<Self::Connection, Failure>;
}

/// Runs statements, one at a time, on the calling thread.
///
/// Dropping it closes the connection.
pub trait BlockingConnection: Send {
    /// Runs one statement in a transaction of its own, or in the one that is open.
    ///
    /// # Errors
    /// As for [`Connection::run`].
    fn run(&mut self, statement: &'static Statement, params: Vec<Value>) -> Result<Rows, Failure>;

    /// Runs a script of several statements without parameters and ignores its rows.
    ///
    /// # Errors
    /// As for [`Connection::run`].
    fn script(&mut self, sql: &'static str) -> Result<(), Failure>;
}

/// A [`Connector`] over a driver that blocks.
///
/// Each lane has a thread, which runs the calls of the lane between the polls of it; so callers
/// are told what the server has answered before the next call blocks. When a call goes unanswered
/// another thread takes the lane over, and the call is left behind with its connection until it
/// returns.
pub struct Hosted<C> {
    connector: Arc<C>,
    stuck: Arc<AtomicUsize>,
}

impl<C: BlockingConnector> Hosted<C> {
    /// Hosts a connector.
    pub fn new(connector: C) -> Self {
        Self {
            connector: Arc::new(connector),
            stuck: Arc::default(),
        }
    }
}

impl<C> fmt::Debug for Hosted<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hosted").finish_non_exhaustive()
    }
}

impl<C: BlockingConnector> Connector for Hosted<C> {
    type Connection = HostedConnection<C::Connection>;

    async fn connect(&self, mode: Mode) -> Result<Self::Connection, Failure> {
        let stuck = self.stuck.load(Ordering::Relaxed);
        if stuck >= MOST_STUCK {
            let message = format!("{stuck} calls to the server are still unanswered");
            return Err(Failure::connect(None, message));
        }
        let connector = Arc::clone(&self.connector);
        let connection = call(move || connector.connect(mode)).await?;
        Ok(HostedConnection(Some(connection)))
    }

    fn spawn(&self, name: &'static str, lane: Lane) {
        let host = Arc::new(Host {
            name,
            lane: Mutex::new(Some(lane)),
            state: Mutex::new(State {
                woken: true,
                poller: 0,
                blocked: None,
                sleeper: None,
            }),
            stuck: Arc::clone(&self.stuck),
        });
        if host.start(0).is_err() {
            // Without a thread the lane is dropped, which fails its callers.
            host.end();
        }
    }
}

/// A connection that is used on the threads of the lane that owns it.
pub struct HostedConnection<N>(Option<N>);

impl<N> fmt::Debug for HostedConnection<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostedConnection").finish_non_exhaustive()
    }
}

impl<N: BlockingConnection + 'static> HostedConnection<N> {
    async fn with<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut N) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let Some(mut connection) = self.0.take() else {
            let message = "a call on this connection was given up";
            return Err(Failure::statement(None, true, message));
        };
        let (connection, outcome) = call(move || {
            let outcome = work(&mut connection);
            (connection, outcome)
        })
        .await;
        self.0 = Some(connection);
        outcome
    }
}

impl<N: BlockingConnection + 'static> Connection for HostedConnection<N> {
    async fn run(&mut self, call: &dyn Call) -> Result<Rows, Failure> {
        let (statement, params) = (call.statement(), call.params());
        self.with(move |connection| connection.run(statement, params))
            .await
    }

    async fn script(&mut self, sql: &'static str) -> Result<(), Failure> {
        self.with(move |connection| connection.script(sql)).await
    }
}

/// A blocking connection that is used where it is: its futures block, and are ready when polled.
///
/// It serves operations inside a transaction of the caller; see
/// [`block_on`](crate::blocking::block_on).
#[derive(Debug)]
pub struct Inline<N>(pub N);

impl<N: BlockingConnection> Connection for Inline<N> {
    async fn run(&mut self, call: &dyn Call) -> Result<Rows, Failure> {
        self.0.run(call.statement(), call.params())
    }

    async fn script(&mut self, sql: &'static str) -> Result<(), Failure> {
        self.0.script(sql)
    }
}

impl<N: BlockingConnection> BlockingConnection for &mut N {
    fn run(&mut self, statement: &'static Statement, params: Vec<Value>) -> Result<Rows, Failure> {
        (**self).run(statement, params)
    }

    fn script(&mut self, sql: &'static str) -> Result<(), Failure> {
        (**self).script(sql)
    }
}

type Job = Box<dyn FnOnce() + Send>;

thread_local! {
    /// Whether this thread runs jobs after it has polled.
    static HOSTS: Cell<bool> = const { Cell::new(false) };
    static JOBS: RefCell<VecDeque<Job>> = const { RefCell::new(VecDeque::new()) };
}

/// What a job leaves for the future that waits for it. When that is gone, the value is dropped
/// with the job.
struct Slot<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

/// Runs blocking work on the thread of the lane, once the poll that asked for it has returned.
async fn call<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    if !HOSTS.get() {
        return work();
    }
    let slot = Arc::new(Mutex::new(Slot {
        value: None,
        waker: None,
    }));
    let answer = Arc::clone(&slot);
    let job = move || {
        let value = work();
        let mut slot = lock(&answer);
        slot.value = Some(value);
        let waker = slot.waker.take();
        drop(slot);
        drop(answer);
        if let Some(waker) = waker {
            waker.wake();
        }
    };
    JOBS.with_borrow_mut(|jobs| jobs.push_back(Box::new(job)));
    poll_fn(|context| {
        let mut slot = lock(&slot);
        if let Some(value) = slot.value.take() {
            return Poll::Ready(value);
        }
        slot.waker = Some(context.waker().clone());
        Poll::Pending
    })
    .await
}

/// A lane with the thread that polls it.
struct Host {
    name: &'static str,
    lane: Mutex<Option<Lane>>,
    state: Mutex<State>,
    stuck: Arc<AtomicUsize>,
}

struct State {
    woken: bool,
    /// The number of the thread that polls the lane; threads with other numbers are left behind.
    poller: u64,
    /// Since when that thread runs a job.
    blocked: Option<Instant>,
    /// That thread, while it sleeps.
    sleeper: Option<Thread>,
}

impl Host {
    /// Starts thread `number`, which polls the lane from then on.
    fn start(self: &Arc<Self>, number: u64) -> std::io::Result<()> {
        let poller = Poller {
            host: Arc::clone(self),
            number,
            left_behind: false,
        };
        thread::Builder::new()
            .name(self.name.to_owned())
            .spawn(move || poller.run())
            .map(drop)
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        match &mut *lock(&self.lane) {
            Some(lane) => Pin::as_mut(lane).poll(context),
            None => Poll::Ready(()),
        }
    }

    fn end(&self) {
        let lane = lock(&self.lane).take();
        drop(lane);
    }
}

/// A thread of a lane.
struct Poller {
    host: Arc<Host>,
    number: u64,
    /// Whether another thread took the lane over.
    left_behind: bool,
}

impl Poller {
    fn run(mut self) {
        HOSTS.set(true);
        let waker = Waker::from(Arc::clone(&self.host));
        let mut context = Context::from_waker(&waker);
        while self.awaits() {
            if self.host.poll(&mut context).is_ready() {
                self.host.end();
                return;
            }
            while let Some(job) = JOBS.with_borrow_mut(VecDeque::pop_front) {
                self.blocks(Some(Instant::now()));
                job();
                self.blocks(None);
            }
        }
    }

    /// Waits until the lane is to be polled; `false` when that is another thread's work.
    fn awaits(&self) -> bool {
        if self.left_behind {
            return false;
        }
        // Who was just told may ask again right away, which saves putting this thread to sleep.
        look(|| lock(&self.host.state).woken);
        loop {
            let mut state = lock(&self.host.state);
            if std::mem::take(&mut state.woken) {
                return true;
            }
            state.sleeper = Some(thread::current());
            drop(state);
            thread::park();
        }
    }

    /// Notes since when a job runs, and that it has returned.
    fn blocks(&mut self, since: Option<Instant>) {
        let mut state = lock(&self.host.state);
        if state.poller == self.number {
            state.blocked = since;
        } else if !std::mem::replace(&mut self.left_behind, true) {
            self.host.stuck.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Poller {
    /// When a driver panics the lane is dropped, which fails its callers.
    fn drop(&mut self) {
        if thread::panicking() {
            self.blocks(None);
            if !self.left_behind {
                self.host.end();
            }
        }
    }
}

impl Wake for Host {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        state.woken = true;
        let stuck = state
            .blocked
            .is_some_and(|since| since.elapsed() >= PATIENCE);
        // Without a further thread the lane has to wait for the call.
        if stuck && self.start(state.poller + 1).is_ok() {
            state.poller += 1;
            state.blocked = None;
            self.stuck.fetch_add(1, Ordering::Relaxed);
        }
        let sleeper = state.sleeper.take();
        drop(state);
        if let Some(sleeper) = sleeper {
            sleeper.unpark();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver, Sender};

    use super::*;
    use crate::seam::Type;
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

        fn script(&mut self, _: &'static str) -> Result<(), Failure> {
            let told = self.go_on.recv();
            told.map_err(|_| Failure::statement(None, true, "the server is gone"))
        }
    }

    impl Drop for Slow {
        fn drop(&mut self) {
            let thread = thread::current().name().unwrap_or_default().to_owned();
            // A test that is over does not look.
            let _over = self.dropped.send(thread);
        }
    }

    struct Nothing;

    impl Call for Nothing {
        fn statement(&self) -> &'static Statement {
            &Statement {
                name: "nothing",
                sql: "",
                params: &[],
                columns: &[Type::Int],
            }
        }

        fn params(&self) -> Vec<Value> {
            Vec::new()
        }

        fn model(&self, _: &mut crate::memory::World, _: u64) -> Option<Rows> {
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
        let hosted = Arc::new(Hosted::new(Driver(Mutex::new(vec![slow]))));
        let (sender, told) = mpsc::channel();
        let lane_hosted = Arc::clone(&hosted);
        hosted.spawn(
            "lane",
            Box::pin(async move {
                let mut connection = lane_hosted.connect(Mode::Direct).await.unwrap();
                let telling = async { sender.send("first").unwrap() };
                let (ran, ()) =
                    futures_util::future::join(connection.script("blocks"), telling).await;
                ran.unwrap();
                sender.send("second").unwrap();
            }),
        );
        assert_eq!(told.recv_timeout(WAIT), Ok("first"));
        assert!(told.try_recv().is_err());
        go.send(()).unwrap();
        assert_eq!(told.recv_timeout(WAIT), Ok("second"));
        assert_eq!(drops.recv_timeout(WAIT), Ok("lane".to_owned()));
    }

    #[test]
    fn a_lane_goes_on_without_a_call_that_does_not_return() {
        let ((first, go, drops), (second, _go, _)) = (slow(), slow());
        let hosted = Arc::new(Hosted::new(Driver(Mutex::new(vec![second, first]))));
        let stop = Arc::new(Notify::new());
        let (sender, told) = mpsc::channel();
        let (lane_hosted, lane_stop) = (Arc::clone(&hosted), Arc::clone(&stop));
        hosted.spawn(
            "lane",
            Box::pin(async move {
                let mut connection = lane_hosted.connect(Mode::Direct).await.unwrap();
                let outcome = unless(lane_stop.notified(), connection.script("blocks")).await;
                assert!(outcome.is_none());
                assert!(connection.script("again").await.unwrap_err().broken);
                drop(connection);
                let second = lane_hosted.connect(Mode::Direct).await;
                sender.send(second.is_ok()).unwrap();
            }),
        );
        thread::sleep(PATIENCE + Duration::from_millis(100));
        stop.notify_waiters();
        assert_eq!(told.recv_timeout(WAIT), Ok(true));
        assert_eq!(hosted.stuck.load(Ordering::Relaxed), 1);
        assert!(drops.try_recv().is_err(), "dropped while its call runs");
        go.send(()).unwrap();
        assert_eq!(drops.recv_timeout(WAIT), Ok("lane".to_owned()));
        let since = Instant::now();
        while hosted.stuck.load(Ordering::Relaxed) > 0 {
            assert!(since.elapsed() < WAIT);
            thread::yield_now();
        }
    }

    #[test]
    fn a_driver_that_panics_ends_its_lane() {
        let (slow, _go, _) = slow();
        let hosted = Arc::new(Hosted::new(Driver(Mutex::new(vec![slow]))));
        let (sender, told) = mpsc::channel::<()>();
        let lane_hosted = Arc::clone(&hosted);
        hosted.spawn(
            "lane",
            Box::pin(async move {
                let mut connection = lane_hosted.connect(Mode::Direct).await.unwrap();
                let answer = connection.run(&Nothing).await;
                drop(answer);
                sender.send(()).unwrap();
            }),
        );
        let ended = told.recv_timeout(WAIT);
        assert_eq!(ended, Err(mpsc::RecvTimeoutError::Disconnected));
    }

    #[test]
    fn too_many_calls_left_behind_refuse_further_connections() {
        let hosted = Hosted::new(Driver(Mutex::default()));
        hosted.stuck.store(MOST_STUCK, Ordering::Relaxed);
        let refused = crate::blocking::block_on(hosted.connect(Mode::Direct));
        let Err(failure) = refused else {
            panic!("it was not refused")
        };
        assert_eq!(failure.kind(), crate::ErrorKind::Unavailable);
    }
}
