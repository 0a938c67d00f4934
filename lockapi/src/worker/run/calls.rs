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
use crate::worker::batch::{Calling, Place, Seat, Seats};
use crate::worker::context::Context;
use crate::worker::handlers::{Batch, Runs};
use crate::worker::observe::Observe;
use crate::worker::report::Quiet;
use crate::worker::slots::Slot;

/// How long a call took, if it was run to its end.
pub(super) struct Called(Option<Duration>);

/// The calls of a worker, which has none unless it has handlers of batches.
#[derive(Default)]
pub(super) struct Calls {
    /// Those that gather and those that run.
    calling: FuturesUnordered<Quiet<Called>>,
    /// Those that may take further jobs, with the number of their batch.
    gathering: Vec<(usize, Arc<dyn Seats>)>,
    /// Whether there may be jobs to claim for them.
    pub(super) may_have_jobs: bool,
    /// Whether the next claim is for all handlers.
    turn: bool,
}

impl Calls {
    pub(super) fn is_empty(&self) -> bool {
        self.calling.is_empty()
    }

    /// The next that has ended, if there are any.
    pub(super) fn poll_next(&mut self, cx: &mut Waiting<'_>) -> Poll<Option<Called>> {
        self.calling.poll_next_unpin(cx)
    }

    /// Has those that gather begin.
    pub(super) fn close(&mut self) {
        for (_, seats) in self.gathering.drain(..) {
            seats.close();
        }
    }

    pub(super) fn give_up(&mut self) {
        self.gathering.clear();
        drop(std::mem::take(&mut self.calling));
    }

    pub(super) fn gather(&self) -> bool {
        !self.gathering.is_empty()
    }

    fn room(&mut self) -> usize {
        self.gathering.retain(|(_, seats)| seats.room() > 0);
        self.gathering.iter().map(|(_, seats)| seats.room()).sum()
    }

    /// How many jobs may be claimed for those that gather.
    pub(super) fn may_claim(&mut self) -> usize {
        if self.gathering.is_empty() || !self.may_have_jobs {
            return 0;
        }
        self.room().min(MAX_CLAIM)
    }

    /// Whether they wait for jobs to arrive.
    pub(super) fn wait(&mut self) -> bool {
        !self.gathering.is_empty() && !self.may_have_jobs && self.room() > 0
    }

    pub(super) fn take_turn(&mut self) -> bool {
        self.turn = !self.turn;
        self.turn
    }

    /// The names of the jobs that they gather.
    pub(super) fn gathering(&self, batches: &[Batch]) -> Vec<String> {
        let batches = self.gathering.iter().map(|(number, _)| &batches[*number]);
        batches.map(|batch| batch.name.clone()).collect()
    }

    fn seat(&self, batch: usize) -> Option<Seat> {
        let of_batch = self.gathering.iter().filter(|(number, _)| *number == batch);
        let mut seats = of_batch.map(|(_, seats)| Arc::clone(seats));
        seats.find_map(Seats::assign)
    }
}

impl Run {
    /// Gives the job a seat in a call that gathers, or in a new one.
    pub(super) fn gather(&mut self, number: usize, delivery: Arc<Delivery>, slot: Slot) {
        if let Some(seat) = self.calls.seat(number) {
            self.join(number, seat, delivery);
            return;
        }
        let batch = &self.handlers.batches[number];
        let options = batch.options.worker_options();
        let place = Place {
            slot: Arc::new(slot),
            queue: Arc::clone(&self.queue),
            timeout: options.unwrap_or(&self.settings.options).time(),
            waits: !self.until_idle,
            layered: self.handlers.may_have_layers(batch),
        };
        let (seats, calling) = (batch.open)(place);
        self.calls.gathering.retain(|(of, _)| *of != number);
        self.calls.gathering.push((number, Arc::clone(&seats)));
        if let Some(seat) = Arc::clone(&seats).assign() {
            self.join(number, seat, delivery);
        }
        // What is there joins before it begins.
        let ahead = std::mem::take(&mut self.ahead);
        self.gather_or_keep(ahead);
        self.call(calling);
    }

    /// Gives jobs seats in calls that gather, and keeps the others for later.
    pub(super) fn gather_or_keep(&mut self, deliveries: impl IntoIterator<Item = Delivery>) {
        let mut kept = VecDeque::new();
        for delivery in deliveries {
            match self.seat_of(&delivery) {
                None => kept.push_back(delivery),
                Some((number, seat)) => {
                    let delivery = Arc::new(delivery);
                    if delivery.begin() {
                        self.join(number, seat, delivery);
                    } else {
                        self.give_back(delivery);
                    }
                }
            }
        }
        self.ahead.append(&mut kept);
    }

    fn seat_of(&self, delivery: &Delivery) -> Option<(usize, Seat)> {
        let handler = self.handlers.of(delivery.name())?;
        let Runs::Batch(number) = handler.runs else {
            return None;
        };
        Some((number, self.calls.seat(number)?))
    }

    fn join(&mut self, number: usize, seat: Seat, delivery: Arc<Delivery>) {
        self.settings.observer.started(&delivery);
        let context = Context::new(Arc::clone(&delivery), self.handlers.data());
        let handling = Handling::of(&delivery);
        let batch = &self.handlers.batches[number];
        let work = handling.run(|| {
            let slot = Arc::clone(seat.slot());
            let work = seat.join(context.clone());
            self.handlers.around(batch, &context, work, &slot)
        });
        // The time limit is that of the call.
        let attempt = attempt(work, context, Arc::clone(&self.queue), None);
        self.run_attempt(delivery, handling, attempt, true);
    }

    fn call(&mut self, calling: Calling) {
        self.calls.calling.push(match &self.settings.spawn {
            None => Quiet::new(async move { Called(Some(calling.await)) }),
            Some(spawn) => {
                let (took, _) = self.spawned(spawn, calling);
                Quiet::new(async move { Called(took.await.ok()) })
            }
        });
    }

    pub(super) fn called(&mut self, Called(took): &Called) {
        if let Some(took) = *took {
            self.pace.handled(took);
        }
    }
}
