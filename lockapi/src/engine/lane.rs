//! The lane of statements on tables: merges what waits while a statement runs.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

use super::link::{Link, Links};
use crate::error::{Error, ErrorKind, Failure, Result};
use crate::seam::{Connection, Connector, Operation};
use crate::telemetry;
use crate::wait::yield_now;

/// The most requests in one statement, of the usual weight.
const MAX_BATCH: usize = 2048;
/// How often a statement is repeated that the server took back because it met with another.
const DEADLOCKS: u32 = 8;
/// The weight of a request that needs a statement of its own.
pub(crate) const ALONE: usize = MAX_BATCH;

/// An operation that a lane runs.
pub(crate) trait Queued: Operation {
    /// Of the kinds that wait together, the smaller runs first.
    const TURN: u8;
    /// The name that errors tell.
    const NAME: &'static str;
    /// Whether a request whose answer was lost may be sent again.
    const REPEATABLE: bool = true;

    /// How much of a statement it takes; a statement has room for 2048.
    fn weight(&self) -> usize {
        1
    }
}

/// Answers one request; it must not block.
type Reply<T> = Box<dyn FnOnce(Result<T>) + Send>;

pub(crate) type Served<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + 'a>>;

/// Requests that wait together for their statement.
pub(crate) trait Pile<N>: Send + 'static {
    fn as_any(&mut self) -> &mut dyn Any;
    /// Runs one statement for as many as fit and answers them.
    fn serve<'a>(&'a mut self, link: &'a mut Link<N>) -> Served<'a>;
    /// Fails the requests that the next statement would have carried.
    fn refuse(&mut self, failure: &Failure);
    /// Whether a statement whose answer was lost may be sent again.
    fn is_repeatable(&self) -> bool;
    fn is_empty(&self) -> bool;
}

struct Requests<O: Operation> {
    asked: Vec<O>,
    replies: Vec<Reply<O::Output>>,
    /// So many are to be sent one by one: the server refused the data of one of them.
    single: usize,
}

impl<O: Operation> Default for Requests<O> {
    fn default() -> Self {
        Self {
            asked: Vec::new(),
            replies: Vec::new(),
            single: 0,
        }
    }
}

impl<O: Queued> Requests<O> {
    /// Where the next statement's requests start.
    fn split(&self) -> usize {
        let last = self.asked.len().saturating_sub(1);
        if self.single > 0 {
            return last;
        }
        let mut room = MAX_BATCH;
        let fitting = self.asked.iter().rev().take_while(|one| {
            let fits = one.weight() <= room;
            room = room.saturating_sub(one.weight());
            fits
        });
        // One that is heavier than a statement's room goes alone.
        last.min(self.asked.len() - fitting.count())
    }
}

impl<O: Queued, N: Connection> Pile<N> for Requests<O> {
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }

    fn serve<'a>(&'a mut self, link: &'a mut Link<N>) -> Served<'a> {
        Box::pin(async move {
            let from = self.split();
            telemetry::batch(O::STATEMENT.name, self.asked.len() - from);
            let answers = link.perform(&self.asked[from..]).await?;
            self.asked.truncate(from);
            self.single = self.single.saturating_sub(1);
            for (reply, answer) in self.replies.drain(from..).zip(answers) {
                reply(Ok(answer));
            }
            Ok(())
        })
    }

    fn refuse(&mut self, failure: &Failure) {
        let from = self.split();
        let batch = self.asked.len() - from;
        if batch > 1 && !failure.broken && failure.kind() == ErrorKind::Corrupt {
            // What is wrong with one of them is no fault of the others.
            self.single = batch;
            return;
        }
        self.single = self.single.saturating_sub(1);
        self.asked.truncate(from);
        for reply in self.replies.drain(from..) {
            reply(Err(failure.error(O::NAME)));
        }
    }

    fn is_repeatable(&self) -> bool {
        O::REPEATABLE
    }

    fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }
}

type Piles<N> = BTreeMap<(u8, TypeId), Box<dyn Pile<N>>>;

struct State<N> {
    piles: Piles<N>,
    closing: bool,
    ended: bool,
}

/// Takes requests from anywhere and runs them on one connection.
pub(crate) struct Lane<C: Connector> {
    links: Arc<Links<C>>,
    state: Mutex<State<C::Connection>>,
    wake: Notify,
    started: AtomicBool,
}

impl<C: Connector> Lane<C> {
    pub(crate) fn new(links: Arc<Links<C>>) -> Arc<Self> {
        Arc::new(Self {
            links,
            state: Mutex::new(State {
                piles: BTreeMap::new(),
                closing: false,
                ended: false,
            }),
            wake: Notify::new(),
            started: AtomicBool::new(false),
        })
    }

    /// Queues a request; `reply` is called once, on the lane.
    pub(crate) fn submit<O: Queued>(
        self: &Arc<Self>,
        asked: O,
        reply: impl FnOnce(Result<O::Output>) + Send + 'static,
    ) {
        self.add(O::TURN, |requests: &mut Requests<O>| {
            requests.asked.push(asked);
            requests.replies.push(Box::new(reply));
        });
    }

    /// Adds to the pile of a kind.
    pub(crate) fn add<P: Pile<C::Connection> + Default>(
        self: &Arc<Self>,
        turn: u8,
        add: impl FnOnce(&mut P),
    ) {
        let mut state = self.lock();
        if state.ended {
            drop(state);
            let mut pile = P::default();
            add(&mut pile);
            refuse_all(&mut pile);
            return;
        }
        let pile = state
            .piles
            .entry((turn, TypeId::of::<P>()))
            .or_insert_with(|| Box::<P>::default());
        if let Some(pile) = pile.as_any().downcast_mut() {
            add(pile);
        }
        drop(state);
        if !self.started.swap(true, Ordering::AcqRel) {
            let lane = Arc::clone(self).lane();
            self.links.connector.spawn("lockapi-tables", Box::pin(lane));
        }
        self.wake.notify_one();
    }

    /// Queues a request and waits for its answer.
    pub(crate) async fn call<O: Queued>(self: &Arc<Self>, asked: O) -> Result<O::Output> {
        let (sender, answer) = oneshot::channel();
        self.submit(asked, move |outcome| {
            // A caller that left does not want the answer.
            let _left = sender.send(outcome);
        });
        answer.await.unwrap_or_else(|_| Err(ended(O::NAME)))
    }

    /// Lets the lane end once it has done what is queued.
    pub(crate) fn close(&self) {
        self.lock().closing = true;
        self.wake.notify_one();
    }

    /// Takes notice of its end also when it is dropped before it is first polled.
    fn lane(self: Arc<Self>) -> impl Future<Output = ()> {
        let ended = Ended(Arc::clone(&self));
        async move {
            self.run().await;
            drop(ended);
        }
    }

    async fn run(&self) {
        let watch = self.links.watch();
        let mut link = None;
        loop {
            let piles = {
                let mut state = self.lock();
                if state.piles.is_empty() && state.closing {
                    return;
                }
                std::mem::take(&mut state.piles)
            };
            if piles.is_empty() {
                self.wake.notified().await;
                continue;
            }
            for mut pile in piles.into_values() {
                while !pile.is_empty() {
                    let served = self.serve(&mut link, &watch, pile.as_mut()).await;
                    if let Err(failure) = served {
                        pile.refuse(&failure);
                    }
                }
            }
            yield_now().await;
        }
    }

    /// A request that met a broken connection gets a second try, if it may be repeated; one that met
    /// with another in a deadlock gets several.
    async fn serve(
        &self,
        link: &mut Option<Link<C::Connection>>,
        watch: &Arc<super::link::Watch>,
        pile: &mut dyn Pile<C::Connection>,
    ) -> Result<(), Failure> {
        let mut tries = 2;
        let mut deadlocks = DEADLOCKS;
        let mut before: Option<Failure> = None;
        loop {
            tries -= 1;
            let outcome = match link {
                Some(open) => pile.serve(open).await,
                None => match self.links.open(watch).await {
                    Ok(open) => pile.serve(link.insert(open)).await,
                    // What an earlier try may have done stays unknown.
                    Err(failure) => Err(before
                        .take()
                        .filter(|before| before.sent)
                        .unwrap_or(failure)),
                },
            };
            let Err(failure) = outcome else {
                return Ok(());
            };
            let open = link.is_some();
            if failure.broken {
                *link = None;
            }
            if failure.kind() == ErrorKind::Deadlock && deadlocks > 0 {
                // The server took it back; whoever it met with has gone on.
                deadlocks -= 1;
                tries += 1;
                continue;
            }
            let again = matches!(
                failure.kind(),
                ErrorKind::Unavailable | ErrorKind::Indeterminate
            );
            let harmless = !failure.sent || pile.is_repeatable();
            if tries == 0 || !open || !again || !harmless {
                return Err(failure);
            }
            before = Some(failure);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<C::Connection>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fails what is queued when the lane ends, also when its runtime drops it.
struct Ended<C: Connector>(Arc<Lane<C>>);

impl<C: Connector> Drop for Ended<C> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.ended = true;
        let mut piles = std::mem::take(&mut state.piles);
        drop(state);
        for pile in piles.values_mut() {
            refuse_all(pile.as_mut());
        }
    }
}

fn refuse_all<N: 'static>(pile: &mut dyn Pile<N>) {
    let failure = Failure::connect(None, ended("end"));
    while !pile.is_empty() {
        pile.refuse(&failure);
    }
}

pub(crate) fn ended(operation: &'static str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        operation,
        "the runtime that the backend was connected on has shut down",
    )
}
