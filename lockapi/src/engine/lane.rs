//! The lane of statements on tables: merges what waits while a statement runs.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::apart::Apart;
use super::link::{Link, Links, Watch};
use super::piles::{Pile, Queued, Repeated, Reply, Requests};
use crate::error::{Error, ErrorKind, Failure, Result};
use crate::seam::Connector;
use crate::telemetry::{self, Fault};
use crate::wait::{unless, yield_now};

#[cfg(test)]
mod tests;

/// How often a statement is repeated that the server took back because it met with another.
const DEADLOCKS: u32 = 8;
/// How long a connection that is open may leave requests unanswered that have a limit of their own: it
/// is replaced by a fresh one, which has their whole limit.
const SILENCE: Duration = Duration::from_secs(1);
/// How often the other tasks of a thread have their turn before a limit ends an attempt: a runtime whose
/// thread the program has kept busy then has looked for an answer that is there already.
const TURNS: u32 = 200;

type Piles<N> = BTreeMap<Place, Box<dyn Pile<N>>>;

/// The turn of requests, the class of their limit, and their kind. What is in one place goes into the
/// same statements.
type Place = (u8, u32, TypeId);

struct State<N> {
    piles: Piles<N>,
    /// Whether there is a task that runs them.
    running: bool,
    closing: bool,
}

/// Takes requests from anywhere and runs them on one connection.
pub(crate) struct Lane<C: Connector> {
    links: Arc<Links<C>>,
    /// A connection that is not used for so long is closed.
    idle: Option<Duration>,
    /// The limit of requests that have none of their own.
    limit: Option<Duration>,
    state: Mutex<State<C::Connection>>,
    wake: Notify,
}

impl<C: Connector> Lane<C> {
    pub(crate) fn new(links: Arc<Links<C>>) -> Arc<Self> {
        Self::with(links, None, None)
    }

    /// A lane that gives up a connection which is silent for long.
    pub(crate) fn hurried(links: Arc<Links<C>>) -> Arc<Self> {
        Self::with(links, None, Some(SILENCE))
    }

    /// A lane whose connection is closed when it is not used for `idle`.
    pub(crate) fn occasional(links: Arc<Links<C>>, idle: Duration) -> Arc<Self> {
        Self::with(links, Some(idle), None)
    }

    fn with(links: Arc<Links<C>>, idle: Option<Duration>, limit: Option<Duration>) -> Arc<Self> {
        Arc::new(Self {
            links,
            idle,
            limit,
            state: Mutex::new(State {
                piles: BTreeMap::new(),
                running: false,
                closing: false,
            }),
            wake: Notify::new(),
        })
    }

    /// Queues a request; `reply` is called once, on the lane.
    pub(crate) fn submit<O: Queued>(
        self: &Arc<Self>,
        asked: O,
        reply: impl FnOnce(Result<O::Output>) + Send + 'static,
    ) {
        self.queue(asked, Reply::new(reply));
    }

    /// The same; `reply` is also told whether the answer is that to a repetition.
    pub(crate) fn submit_told<O: Queued>(
        self: &Arc<Self>,
        asked: O,
        reply: impl FnOnce(Result<O::Output>, Repeated) + Send + 'static,
    ) {
        self.queue(asked, Reply::told(reply));
    }

    fn queue<O: Queued>(self: &Arc<Self>, asked: O, reply: Reply<O::Output>) {
        let class = asked.limit().map_or(0, class);
        self.place(O::TURN, class, |requests: &mut Requests<O>| {
            requests.add(asked, reply);
        });
    }

    /// How long the server may take to answer.
    pub(super) fn timeout(&self) -> Duration {
        self.links.timeout
    }

    /// Adds to the pile of a kind.
    pub(crate) fn add<P: Pile<C::Connection> + Default>(
        self: &Arc<Self>,
        turn: u8,
        add: impl FnOnce(&mut P),
    ) {
        self.place(turn, 0, add);
    }

    fn place<P: Pile<C::Connection> + Default>(
        self: &Arc<Self>,
        turn: u8,
        class: u32,
        add: impl FnOnce(&mut P),
    ) {
        let mut state = self.lock();
        let pile = state
            .piles
            .entry((turn, class, TypeId::of::<P>()))
            .or_insert_with(|| Box::<P>::default());
        if let Some(pile) = pile.as_any().downcast_mut() {
            add(pile);
        }
        let starts = !std::mem::replace(&mut state.running, true);
        drop(state);
        if starts {
            self.start();
        }
        self.wake.notify_one();
    }

    fn start(self: &Arc<Self>) {
        let lane = Arc::clone(self).lane();
        self.links.connector.spawn("lockapi-tables", Box::pin(lane));
    }

    /// Queues a request and waits for its answer.
    pub(crate) async fn call<O: Queued>(self: &Arc<Self>, asked: O) -> Result<O::Output> {
        let (sender, answer) = oneshot::channel();
        self.submit(asked, move |outcome| {
            // A caller that left does not want the answer.
            let _left = sender.send(outcome);
        });
        let outcome = answer.await.unwrap_or_else(|_| Err(ended(O::NAME)));
        outcome.map_err(|error| error.during(O::NAME))
    }

    /// Lets the lane end once it has done what is queued.
    pub(crate) fn close(&self) {
        self.lock().closing = true;
        self.wake.notify_one();
    }

    /// Takes notice of its end also when it is dropped before it is first polled.
    fn lane(self: Arc<Self>) -> impl Future<Output = ()> {
        let mut ended = Ended {
            lane: Some(Arc::clone(&self)),
            began: false,
        };
        async move {
            ended.begin();
            self.run().await;
            ended.finish();
        }
    }

    async fn run(&self) {
        let keeper = &self.links.keeper;
        let watch = self.links.watch();
        let mut link = None;
        let mut apart = Apart::new(self.links.timeout);
        loop {
            let piles = {
                let mut state = self.lock();
                if state.piles.is_empty() && apart.is_empty() && state.closing {
                    state.running = false;
                    return;
                }
                std::mem::take(&mut state.piles)
            };
            let wait = apart.wait(keeper.now());
            if piles.is_empty() && wait != Some(Duration::ZERO) {
                match (wait, self.idle) {
                    (Some(wait), _) => drop(unless(keeper.sleep(wait), self.wake.notified()).await),
                    (None, Some(idle)) if link.is_some() => {
                        if unless(keeper.sleep(idle), self.wake.notified())
                            .await
                            .is_none()
                        {
                            link = None;
                        }
                    }
                    (None, _) => self.wake.notified().await,
                }
                continue;
            }
            for mut pile in piles.into_values() {
                apart.join(pile.as_mut());
                while !pile.is_empty() {
                    let patience = apart.patience();
                    let served = self.serve(&mut link, &watch, pile.as_mut(), patience).await;
                    if let Err(failure) = served {
                        apart.failed(pile.as_mut(), &failure, keeper.now());
                        apart.join(pile.as_mut());
                    }
                }
            }
            // One statement a round: others have their turn in between.
            if let Some(mut group) = apart.due(keeper.now()) {
                let (pile, patience) = group.turn();
                let served = self.serve(&mut link, &watch, pile, patience).await;
                apart.tried(group, served.err().as_ref(), keeper.now());
            }
            yield_now().await;
        }
    }

    /// Runs the next statement of a pile, which waits for a lock for `patience` at most.
    ///
    /// A request that met a broken connection gets a second try, if it may be repeated; one that met
    /// with another in a deadlock gets several.
    async fn serve(
        &self,
        link: &mut Option<Link<C::Connection>>,
        watch: &Arc<Watch>,
        pile: &mut dyn Pile<C::Connection>,
        patience: Duration,
    ) -> Result<(), Failure> {
        let limit = pile.limit().or(self.limit);
        // Waiting for a lock is no silence.
        let patience = limit.map_or(patience, |limit| patience.min(limit / 4));
        let mut tries = 2;
        let mut deadlocks = DEADLOCKS;
        let mut before: Option<Failure> = None;
        loop {
            tries -= 1;
            let limit = match link {
                Some(_) => limit.map(|limit| limit.min(SILENCE)),
                // Who has no limit of its own has the time that opening a connection takes.
                None => pile.limit(),
            };
            let mut opened = link.is_some();
            let repeated = Repeated(before.as_ref().is_some_and(|before| before.sent));
            let attempt = async {
                let open = if let Some(open) = link {
                    open.prepare(patience, !pile.is_repeatable()).await?;
                    open
                } else {
                    let open = self.links.open(watch, patience).await?;
                    opened = true;
                    link.insert(open)
                };
                open.repeated = repeated;
                pile.serve(open).await
            };
            let outcome = match limit {
                Some(limit) => self.within(limit, attempt).await,
                None => attempt.await,
            };
            let Err(mut failure) = outcome else {
                return Ok(());
            };
            if !opened {
                failure = failure.undone();
            }
            if failure.broken
                && let Some(broken) = link.take()
                && failure.sent
                && failure.sqlstate.is_none()
            {
                // It must not go on beside its repetition, or with nobody waiting for it.
                broken.cancel();
            }
            // What an earlier try may have done stays unknown.
            let unknown = before.take().filter(|before| before.sent);
            if failure.kind() == ErrorKind::Deadlock && deadlocks > 0 {
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
            let harmless = !failure.sent || pile.is_repeatable();
            if tries == 0 || !opened || !again || late || !harmless {
                return Err(unknown.unwrap_or(failure));
            }
            before = unknown.or(Some(failure));
        }
    }

    /// Runs an attempt, and takes it for unanswered after `limit`.
    async fn within(
        &self,
        limit: Duration,
        attempt: impl Future<Output = Result<(), Failure>>,
    ) -> Result<(), Failure> {
        let keeper = &self.links.keeper;
        let up = async {
            keeper.sleep(limit).await;
            for _ in 0..TURNS {
                yield_now().await;
            }
        };
        unless(up, attempt).await.unwrap_or_else(|| {
            let message = format!("the server did not answer within {limit:?}");
            Err(Failure::statement(None, true, message))
        })
    }

    fn lock(&self) -> MutexGuard<'_, State<C::Connection>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Limits of one class are within a factor of four of each other: the shortest is that of the statement,
/// and must not be much too short for the others.
fn class(limit: Duration) -> u32 {
    let micros = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
    1 + micros.max(1).ilog2() / 2
}

/// Notices that the task ended before its time: it panicked, or its runtime dropped it. What it had
/// under way is answered as it is dropped; for what is queued another is started, unless this one
/// could not even begin.
struct Ended<C: Connector> {
    lane: Option<Arc<Lane<C>>>,
    began: bool,
}

impl<C: Connector> Ended<C> {
    fn begin(&mut self) {
        self.began = true;
    }

    fn finish(mut self) {
        self.lane = None;
    }
}

impl<C: Connector> Drop for Ended<C> {
    fn drop(&mut self) {
        let Some(lane) = self.lane.take() else {
            return;
        };
        telemetry::fault(Fault::WorkerEnded);
        let mut state = lane.lock();
        if self.began && !state.piles.is_empty() {
            drop(state);
            return lane.start();
        }
        state.running = false;
        let piles = std::mem::take(&mut state.piles);
        drop(state);
        for mut pile in piles.into_values() {
            pile.refuse_all(&Failure::connect(None, ended("end")));
        }
    }
}

pub(crate) fn ended(operation: &'static str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        operation,
        "the runtime that the backend was connected on has shut down",
    )
}
