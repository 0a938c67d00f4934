//! Calls of handlers that get several jobs at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context as Waiting, Poll};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::Run;
use crate::queue::{Delivery, MAX_CLAIM};
use crate::telemetry::Handling;
use crate::worker::attempt::attempt;
use crate::worker::batch::{Batch, CallFuture, CallSetup, Entry};
use crate::worker::context::Context;
use crate::worker::handlers::{BatchHandler, Runs};
use crate::worker::observe::Observe;
use crate::worker::report::Quiet;
use crate::worker::slots::Slot;

/// How long a call took, if it was run to its end.
pub(super) struct CallTime(Option<Duration>);

/// The calls of a worker, which has none unless it has handlers of batches.
#[derive(Default)]
pub(super) struct Calls {
    /// Calls that gather or run.
    futures: FuturesUnordered<Quiet<CallTime>>,
    /// The batches that may take further jobs, each with the number of its handler.
    gathering: Vec<(usize, Arc<dyn Batch>)>,
    /// Whether there may be jobs to claim for these batches.
    pub(super) may_have_jobs: bool,
    /// Whether the next claim is for all handlers.
    turn: bool,
}

impl Calls {
    pub(super) fn is_empty(&self) -> bool {
        self.futures.is_empty()
    }

    /// The next call that has ended; `None` if there are no calls.
    pub(super) fn poll_next(&mut self, cx: &mut Waiting<'_>) -> Poll<Option<CallTime>> {
        self.futures.poll_next_unpin(cx)
    }

    /// Lets the calls that gather begin.
    pub(super) fn close(&mut self) {
        for (_, batch) in self.gathering.drain(..) {
            batch.close();
        }
    }

    pub(super) fn give_up(&mut self) {
        self.gathering.clear();
        drop(std::mem::take(&mut self.futures));
    }

    pub(super) fn is_gathering(&self) -> bool {
        !self.gathering.is_empty()
    }

    /// How many jobs the gathering batches can still take.
    fn capacity(&mut self) -> usize {
        self.gathering.retain(|(_, batch)| batch.capacity() > 0);
        let batches = self.gathering.iter();
        batches.map(|(_, batch)| batch.capacity()).sum()
    }

    /// How many jobs to claim for the gathering batches.
    pub(super) fn want(&mut self) -> usize {
        if self.gathering.is_empty() || !self.may_have_jobs {
            return 0;
        }
        self.capacity().min(MAX_CLAIM)
    }

    /// Whether they wait for jobs to be pushed.
    pub(super) fn is_waiting(&mut self) -> bool {
        !self.gathering.is_empty() && !self.may_have_jobs && self.capacity() > 0
    }

    /// Alternates between a claim for all handlers (`true`) and one for the gathering batches.
    pub(super) fn take_turn(&mut self) -> bool {
        self.turn = !self.turn;
        self.turn
    }

    /// The names of the jobs that the gathering batches take.
    pub(super) fn names(&self, handlers: &[BatchHandler]) -> Vec<String> {
        let handlers = self.gathering.iter().map(|(number, _)| &handlers[*number]);
        handlers.map(|handler| handler.name.clone()).collect()
    }

    /// Reserves an entry in a gathering batch of this handler.
    fn reserve(&self, handler: usize) -> Option<Entry> {
        let gathering = self.gathering.iter();
        let of_handler = gathering.filter(|(number, _)| *number == handler);
        let mut batches = of_handler.map(|(_, batch)| Arc::clone(batch));
        batches.find_map(Batch::reserve)
    }
}

impl Run {
    /// Runs the job in a call that gathers, or in a new one.
    pub(super) fn gather(&mut self, number: usize, delivery: Arc<Delivery>, slot: Slot) {
        if let Some(entry) = self.calls.reserve(number) {
            self.run_in_batch(number, entry, delivery);
            return;
        }
        let handler = &self.handlers.batches[number];
        let options = handler.options.worker_options();
        let setup = CallSetup {
            slot: Arc::new(slot),
            queue: Arc::clone(&self.queue),
            timeout: options.unwrap_or(&self.settings.options).time(),
            gathers: !self.until_idle,
            has_layers: self.handlers.may_have_layers(handler),
        };
        let (batch, call) = (handler.open)(setup);
        self.calls.gathering.retain(|(of, _)| *of != number);
        self.calls.gathering.push((number, Arc::clone(&batch)));
        if let Some(entry) = batch.reserve() {
            self.run_in_batch(number, entry, delivery);
        }
        // Jobs that were claimed before join the batch before the call begins.
        let prefetched = std::mem::take(&mut self.prefetched);
        self.gather_or_keep(prefetched);
        self.run_call(call);
    }

    /// Runs jobs in calls that gather, and keeps the others for later.
    pub(super) fn gather_or_keep(&mut self, deliveries: impl IntoIterator<Item = Delivery>) {
        let mut kept = VecDeque::new();
        for delivery in deliveries {
            match self.reserve_for(&delivery) {
                None => kept.push_back(delivery),
                Some((number, entry)) => {
                    let delivery = Arc::new(delivery);
                    if delivery.begin() {
                        self.run_in_batch(number, entry, delivery);
                    } else {
                        self.give_back(delivery);
                    }
                }
            }
        }
        self.prefetched.append(&mut kept);
    }

    fn reserve_for(&self, delivery: &Delivery) -> Option<(usize, Entry)> {
        let handler = self.handlers.of(delivery.name())?;
        let Runs::Batch(number) = handler.runs else {
            return None;
        };
        Some((number, self.calls.reserve(number)?))
    }

    fn run_in_batch(&mut self, number: usize, entry: Entry, delivery: Arc<Delivery>) {
        self.settings.observer.started(&delivery);
        let context = Context::new(Arc::clone(&delivery), self.handlers.data());
        let handling = Handling::of(&delivery);
        let handler = &self.handlers.batches[number];
        let work = handling.run(|| {
            let slot = Arc::clone(entry.slot());
            let work = entry.fill(context.clone());
            self.handlers.around(handler, &context, work, &slot)
        });
        // The time limit is that of the call.
        let attempt = attempt(work, context, Arc::clone(&self.queue), None);
        self.run_attempt(delivery, handling, attempt, true);
    }

    fn run_call(&mut self, call: CallFuture) {
        self.calls.futures.push(match &self.settings.spawn {
            None => Quiet::new(async move { CallTime(Some(call.await)) }),
            Some(spawn) => {
                let (took, _) = self.spawned(spawn, call);
                Quiet::new(async move { CallTime(took.await.ok()) })
            }
        });
    }

    pub(super) fn call_ended(&mut self, CallTime(took): &CallTime) {
        if let Some(took) = *took {
            self.pace.handled(took);
        }
    }
}
