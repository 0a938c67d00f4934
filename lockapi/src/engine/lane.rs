//! The lane of statements on tables: merges what waits while a statement runs.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::apart::Apart;
use super::link::{Link, Links, Watch};
use super::piles::{Pile, Queued, Reply, Requests};
use crate::error::{Error, ErrorKind, Failure, Result};
use crate::seam::Connector;
use crate::telemetry::{self, Fault};
use crate::wait::{unless, yield_now};

/// How often a statement is repeated that the server took back because it met with another.
const DEADLOCKS: u32 = 8;

type Piles<N> = BTreeMap<(u8, TypeId), Box<dyn Pile<N>>>;

struct State<N> {
    piles: Piles<N>,
    /// Whether there is a task that runs them.
    running: bool,
    closing: bool,
}

/// Takes requests from anywhere and runs them on one connection.
pub(crate) struct Lane<C: Connector> {
    links: Arc<Links<C>>,
    state: Mutex<State<C::Connection>>,
    wake: Notify,
}

impl<C: Connector> Lane<C> {
    pub(crate) fn new(links: Arc<Links<C>>) -> Arc<Self> {
        Arc::new(Self {
            links,
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
        self.add(O::TURN, |requests: &mut Requests<O>| {
            requests.add(asked, Reply::new(reply));
        });
    }

    /// Adds to the pile of a kind.
    pub(crate) fn add<P: Pile<C::Connection> + Default>(
        self: &Arc<Self>,
        turn: u8,
        add: impl FnOnce(&mut P),
    ) {
        let mut state = self.lock();
        let pile = state
            .piles
            .entry((turn, TypeId::of::<P>()))
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
                match wait {
                    Some(wait) => drop(unless(keeper.sleep(wait), self.wake.notified()).await),
                    None => self.wake.notified().await,
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
        let mut tries = 2;
        let mut deadlocks = DEADLOCKS;
        let mut before: Option<Failure> = None;
        loop {
            tries -= 1;
            let outcome = match link {
                Some(open) => match open.prepare(patience, !pile.is_repeatable()).await {
                    Ok(()) => pile.serve(open).await,
                    Err(failure) => Err(failure),
                },
                None => match self.links.open(watch, patience).await {
                    Ok(open) => pile.serve(link.insert(open)).await,
                    Err(failure) => Err(failure),
                },
            };
            let Err(failure) = outcome else {
                return Ok(());
            };
            let open = link.is_some();
            if failure.broken {
                *link = None;
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
            if tries == 0 || !open || !again || late || !harmless {
                return Err(unknown.unwrap_or(failure));
            }
            before = unknown.or(Some(failure));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<C::Connection>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
