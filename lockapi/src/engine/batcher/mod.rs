//! Batches requests: what waits while a statement runs goes into the next one.
//!
//! A batcher has one connection and runs one statement at a time. Requests wait in the backlog of
//! their kind. In each round the kinds that give something back run a statement each, and then that
//! one of the others runs one that has had the least time of the connection: whoever asks for much
//! waits for it himself.

use std::future::Future;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::connection::{Connections, OpenConnection, Watch, is_closed};
use super::tasks::Running;
use crate::error::{Error, ErrorKind, Failure, Result};
use crate::sync::{Mutex, MutexGuard, Notify};
use crate::telemetry::{self, Fault};
use crate::wait::{unless, yield_now};

mod backlog;
mod batch;
mod caller;
mod isolation;
mod kinds;
mod outbox;
mod request;
#[cfg(test)]
mod tests;

pub(crate) use batch::Batch;
use batch::Requests;
use caller::Waiting;
pub(crate) use caller::{Answer, Caller, Callers, Repeated, Reply};
use isolation::Isolation;
use kinds::{End, Kinds};
use outbox::Outbox;
pub(crate) use request::{ALONE, Queued};
use request::{AnyRequest, Pending};

/// How often a statement is repeated that the server took back because it met with another.
const DEADLOCKS: u32 = 8;
/// How long a connection that is open may leave requests unanswered that have a limit of their own: it
/// is replaced by a fresh one, which has their whole limit.
const SILENCE: Duration = Duration::from_secs(1);
/// How often the other tasks of a thread have their turn before a limit ends an attempt: a runtime whose
/// thread the program has kept busy then has looked for an answer that is there already.
const TURNS: u32 = 200;

struct State {
    kinds: Kinds,
    /// How many requests of each kind waited when it last began to open a connection.
    waiting: Vec<usize>,
    /// Whether there is a task that runs them.
    running: bool,
    closing: bool,
}

/// Takes requests from anywhere and runs them on one connection.
pub(crate) struct Batcher {
    connections: Arc<Connections>,
    /// A connection that is not used for so long is closed.
    idle: Option<Duration>,
    /// The limit of requests that have none of their own.
    limit: Option<Duration>,
    state: Mutex<State>,
    wake: Notify,
}

impl Batcher {
    pub(crate) fn new(connections: Arc<Connections>) -> Arc<Self> {
        Self::with(connections, None, None)
    }

    /// A batcher that gives up a connection which is silent for long.
    pub(crate) fn hurried(connections: Arc<Connections>) -> Arc<Self> {
        Self::with(connections, None, Some(SILENCE))
    }

    /// A batcher whose connection is closed when it is not used for `idle`.
    pub(crate) fn occasional(connections: Arc<Connections>, idle: Duration) -> Arc<Self> {
        Self::with(connections, Some(idle), None)
    }

    fn with(
        connections: Arc<Connections>,
        idle: Option<Duration>,
        limit: Option<Duration>,
    ) -> Arc<Self> {
        Arc::new(Self {
            connections,
            idle,
            limit,
            state: Mutex::new(State {
                kinds: Kinds::default(),
                waiting: Vec::new(),
                running: false,
                closing: false,
            }),
            wake: Notify::new(),
        })
    }

    /// Queues a request; `reply` is called once, by the batcher, or by this call if too many wait.
    pub(crate) fn submit<O: Queued>(
        self: &Arc<Self>,
        request: O,
        reply: impl FnOnce(Result<O::Output>) + Send + 'static,
    ) {
        self.queue(
            request,
            1,
            Reply::new(|outcome, _: Repeated| reply(outcome)),
        );
    }

    /// Queues a request that is made so often.
    pub(crate) fn queue<O: Queued>(
        self: &Arc<Self>,
        request: O,
        times: i64,
        reply: Reply<O::Output>,
    ) {
        self.add(Pending::boxed(request, Caller { times, reply }));
    }

    fn add(self: &Arc<Self>, request: Box<dyn AnyRequest>) {
        if self.is_closing() && !request.gives_back() {
            return request.refuse(&|name| is_closed().error(name));
        }
        let mut state = self.lock();
        let added = state.kinds.add(request);
        let starts = added.is_ok() && !std::mem::replace(&mut state.running, true);
        drop(state);
        if let Err((request, message)) = added {
            return request.refuse(&|name| Error::new(ErrorKind::Capacity, name, message.clone()));
        }
        if starts {
            self.start();
        }
        self.wake.notify_one();
    }

    /// Whether the backend is being closed: what is granted from now on goes back.
    pub(super) fn is_closing(&self) -> bool {
        self.connections.tasks.is_closing()
    }

    /// What closing waits for.
    pub(super) fn enter(&self) -> Running {
        self.connections.tasks.enter()
    }

    /// How long the server may take to answer.
    pub(super) fn timeout(&self) -> Duration {
        self.connections.timeout
    }

    fn start(self: &Arc<Self>) {
        let running = Arc::clone(self).running();
        self.connections.spawn("lockapi-tables", running);
    }

    /// Queues a request and waits for its answer. If the caller leaves before it is sent, it is not
    /// sent, unless it gives something back.
    pub(crate) async fn call<O: Queued>(self: &Arc<Self>, request: O) -> Result<O::Output> {
        let (sender, answer) = oneshot::channel();
        self.queue(request, 1, Reply::new(Waiting(sender)));
        let outcome = answer.await.unwrap_or_else(|_| Err(ended(O::NAME)));
        outcome.map_err(|error| error.during(O::NAME))
    }

    /// Lets the batcher end once it has done what is queued.
    pub(crate) fn close(&self) {
        self.lock().closing = true;
        self.wake.notify_one();
    }

    /// Takes notice of its end also when it is dropped before it is first polled.
    fn running(self: Arc<Self>) -> impl Future<Output = ()> {
        let mut ended = Ended {
            batcher: Some(Arc::clone(&self)),
            began: false,
        };
        async move {
            ended.begin();
            // Its place is in the box of the task, not in what is moved there.
            Box::pin(self.run()).await;
            ended.finish();
        }
    }

    async fn run(&self) {
        let timer = &self.connections.timer;
        let watch = self.connections.watch();
        let mut connection = None;
        let mut isolation = Isolation::new(self.connections.timeout);
        let outbox = Outbox::default();
        // A thread of its own delays no task of the program.
        let paced = !self.connections.driver.has_threads();
        loop {
            let (rounds, waiting) = {
                let mut state = self.lock();
                state.kinds.isolated(isolation.callers());
                let waiting = !state.kinds.is_empty();
                let idle = !waiting && isolation.is_empty() && outbox.is_empty();
                if idle && state.closing {
                    state.running = false;
                    return;
                }
                (state.kinds.round(|kind| outbox.is_due(kind)), waiting)
            };
            let idle = rounds.is_empty();
            let wait = isolation.wait(timer.now(), idle);
            if idle && wait != Some(Duration::ZERO) {
                if waiting {
                    // Only kinds that have others to tell first.
                    outbox.deliver_some();
                    yield_now().await;
                    continue;
                }
                if !outbox.is_empty() {
                    unless(self.wake.notified(), outbox.deliver()).await;
                    continue;
                }
                match (wait, self.idle) {
                    (Some(wait), _) => drop(unless(timer.sleep(wait), self.wake.notified()).await),
                    (None, Some(idle)) if connection.is_some() => {
                        if unless(timer.sleep(idle), self.wake.notified())
                            .await
                            .is_none()
                        {
                            connection = None;
                        }
                    }
                    (None, _) => self.wake.notified().await,
                }
                continue;
            }
            let mut answered = 0;
            for kind in rounds {
                let drawn = self.lock().kinds.draw(kind);
                let mut batch = drawn.batch;
                batch.drop_cancelled();
                isolation.join(&mut batch, timer.now());
                if batch.is_empty() {
                    continue;
                }
                answered += batch.callers();
                let began = timer.now();
                let lock_timeout = isolation.lock_timeout();
                if paced {
                    batch.answer_through(&outbox);
                }
                let served = self.serve(&mut connection, &watch, &mut batch, lock_timeout);
                let served = outbox.beside(served).await;
                outbox.make_due(kind);
                let now = timer.now();
                let end = match &served {
                    Ok(()) => End::Answered,
                    Err(failure) if failure.sqlstate.as_deref() == Some("57014") => End::TimedOut,
                    Err(_) => End::Failed,
                };
                if let Err(failure) = served {
                    isolation.failed(&mut batch, &failure, now);
                }
                let mut state = self.lock();
                let took = now.saturating_sub(began);
                let left = drawn.left;
                state.kinds.served(kind, left, took, end, &mut batch);
            }
            // One statement a round: others have their turn in between.
            if let Some(mut group) = isolation.due(timer.now(), idle) {
                let (batch, lock_timeout) = group.turn();
                if paced {
                    batch.answer_through(&outbox);
                }
                let served = self.serve(&mut connection, &watch, batch, lock_timeout);
                let served = outbox.beside(served).await;
                let left = isolation.tried(group, served.err().as_ref(), timer.now());
                if let Some(mut left) = left {
                    self.lock().kinds.put_back(&mut left);
                }
            }
            if answered > 1 || !self.lock().kinds.is_empty() {
                // Those who were just answered get to ask again, so that they travel with the others. A lone
                // caller is not waited for: yielding makes a runtime wake another thread.
                yield_now().await;
            }
        }
    }

    /// Runs the statement of a batch, which waits for a lock for `lock_timeout` at most.
    ///
    /// A request that met a broken connection gets a second try, if it may be repeated; one that met
    /// with another in a deadlock gets several. Where no connection can be opened, all that waited when it was begun have
    /// waited for it, and are refused together; where the time of the batch is up before that is known, those that had no
    /// more.
    async fn serve(
        &self,
        connection: &mut Option<OpenConnection>,
        watch: &Arc<Watch>,
        batch: &mut Requests,
        lock_timeout: Duration,
    ) -> Result<(), Failure> {
        let limit = batch.limit().or(self.limit);
        // Waiting for a lock is no silence.
        let lock_timeout = limit.map_or(lock_timeout, |limit| lock_timeout.min(limit / 4));
        let mut tries = 2;
        let mut deadlocks = DEADLOCKS;
        let mut before: Option<Failure> = None;
        loop {
            tries -= 1;
            let limit = match connection {
                Some(_) => limit.map(|limit| limit.min(SILENCE)),
                // Who has no limit of its own has the time that opening a connection takes.
                None => batch.limit(),
            };
            let mut opening = if connection.is_some() {
                Opening::Open
            } else {
                Opening::UnderWay
            };
            if opening != Opening::Open {
                let mut state = self.lock();
                state.waiting = state.kinds.lengths();
            }
            let repeated = Repeated(before.as_ref().is_some_and(|before| before.sent));
            let attempt = async {
                let open = if let Some(open) = connection {
                    open.prepare(lock_timeout, !batch.are_repeatable()).await?;
                    open
                } else {
                    let open = self.connections.open(watch, lock_timeout).await;
                    opening = match open {
                        Ok(_) => Opening::Open,
                        Err(_) => Opening::Failed,
                    };
                    connection.insert(open?)
                };
                open.repeated = repeated;
                batch.serve(open).await
            };
            let outcome = match limit {
                Some(limit) => self.within(limit, attempt).await,
                None => attempt.await,
            };
            let Err(mut failure) = outcome else {
                return Ok(());
            };
            if opening != Opening::Open {
                failure = failure.undone();
                // What had no more time than this has waited as long; others may still connect.
                let class = batch.kind().map_or(0, |(class, _)| class);
                let class = Some(class).filter(|_| opening == Opening::UnderWay);
                self.refuse_waiting(&failure, class);
            }
            if failure.broken
                && let Some(broken) = connection.take()
                && failure.sent
                && failure.sqlstate.is_none()
            {
                // It must not go on beside its repetition, or with nobody waiting for it.
                broken.cancel();
            }
            // What an earlier try may have done stays unknown.
            let unknown = before.take().filter(|before| before.sent);
            // Of two that insert a unique key at the same time, one finds it on its next attempt.
            let met = failure.kind() == ErrorKind::Deadlock
                || failure.sqlstate.as_deref() == Some("23505");
            if met && deadlocks > 0 {
                // The server took it back; whoever it met with has gone on.
                deadlocks -= 1;
                tries += 1;
                before = unknown;
                continue;
            }
            let again = matches!(
                failure.kind(),
                ErrorKind::Unavailable | ErrorKind::Indeterminate
            );
            // What took too long once would do so again, and keep the others waiting.
            let late = failure.sqlstate.as_deref() == Some("57014");
            let harmless = !failure.sent || batch.are_repeatable();
            if tries == 0 || opening != Opening::Open || !again || late || !harmless {
                return Err(unknown.unwrap_or(failure));
            }
            before = unknown.or(Some(failure));
        }
    }

    /// Fails the requests that waited when it began to open a connection: all, or those of a class and of shorter ones.
    fn refuse_waiting(&self, failure: &Failure, class: Option<u32>) {
        let mut state = self.lock();
        let waiting = std::mem::take(&mut state.waiting);
        let refused = state.kinds.take_first(&waiting, class);
        // Wakers of the program run with no lock held.
        drop(state);
        for request in refused {
            request.refuse(&|name| failure.error(name));
        }
    }

    /// Runs an attempt, and takes it for unanswered after `limit`.
    async fn within(
        &self,
        limit: Duration,
        attempt: impl Future<Output = Result<(), Failure>>,
    ) -> Result<(), Failure> {
        let timer = &self.connections.timer;
        let up = async {
            timer.sleep(limit).await;
            for _ in 0..TURNS {
                yield_now().await;
            }
        };
        unless(up, attempt).await.unwrap_or_else(|| {
            let message = format!("the server did not answer within {limit:?}");
            Err(Failure::statement(None, true, message))
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How far an attempt has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Opening {
    /// It has no connection yet.
    UnderWay,
    Failed,
    Open,
}

/// Notices that the task ended before its time: it panicked, or its runtime dropped it. What it had
/// under way is answered as it is dropped; for what is queued another is started, unless this one
/// could not even begin.
struct Ended {
    batcher: Option<Arc<Batcher>>,
    began: bool,
}

impl Ended {
    fn begin(&mut self) {
        self.began = true;
    }

    fn finish(mut self) {
        self.batcher = None;
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let Some(batcher) = self.batcher.take() else {
            return;
        };
        telemetry::fault(Fault::WorkerEnded);
        let mut state = batcher.lock();
        if self.began && !state.kinds.is_empty() {
            drop(state);
            return batcher.start();
        }
        state.running = false;
        let mut kinds = std::mem::take(&mut state.kinds);
        drop(state);
        let failure = Failure::connect(None, ended("end"));
        kinds.refuse(&|name| failure.error(name));
    }
}

/// An answer came, and what was to be told of it panicked.
pub(crate) fn answer_lost(operation: &'static str) -> Error {
    let message = "the answer was lost to a panic in this process";
    Error::new(ErrorKind::Indeterminate, operation, message)
}

pub(crate) fn ended(operation: &'static str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        operation,
        "the runtime that the backend was connected on has shut down",
    )
}
