//! The requests of one kind that wait for a statement.

use std::any::Any;
use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::batch::{AnyBatch, Batch};
use super::request::{Caller, Callers, Queued};
use crate::driver::Operation;
use crate::error::{Error, ErrorKind, Failure};

/// The most callers that wait for requests of one kind.
const MAX_CALLERS: usize = 1 << 17;
/// The most weight of requests of one kind that wait.
const MAX_WAITING: usize = 1 << 20;

/// The requests of one kind that wait, whatever they are.
pub(super) trait AnyBacklog: Send {
    fn as_any(&mut self) -> &mut dyn Any;
    /// Takes out the requests of the next statement, of so much weight at most, or one that has more.
    fn draw(&mut self, room: usize) -> Drawn;
    /// Takes back what a statement left, before what came meanwhile.
    fn put_back(&mut self, left: &mut dyn AnyBatch);
    fn is_empty(&self) -> bool;
    /// Fails all.
    fn refuse(&mut self, failure: &Failure);
}

/// The requests of a statement; there are none if all their callers have left.
pub(super) struct Drawn {
    pub(super) batch: Box<dyn AnyBatch>,
    /// How much of the room is left.
    pub(super) left: usize,
}

/// See [`AnyBacklog`]. In the order of arrival; a request that is like one that waits joins it.
pub(super) struct Backlog<O: Operation> {
    waiting: VecDeque<(O, Callers<O::Output>)>,
    /// The number of the first that waits; they are numbered in their order.
    first: u64,
    /// The numbers of those that others may join, by their identity.
    joined: FxHashMap<u64, u64>,
    callers: usize,
    weight: usize,
}

impl<O: Operation> Default for Backlog<O> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            // Numbers go down as well, when requests come back.
            first: 1 << 63,
            joined: FxHashMap::default(),
            callers: 0,
            weight: 0,
        }
    }
}

impl<O: Queued> Backlog<O> {
    /// Adds a request, unless too many wait, here or as `isolated`: then the caller is given back, with what to
    /// tell it.
    pub(super) fn add(
        &mut self,
        mut request: O,
        caller: Caller<O::Output>,
        isolated: usize,
    ) -> Result<(), (Caller<O::Output>, Error)> {
        if !O::GIVES_BACK {
            let full = match (self.callers + isolated, self.weight) {
                (MAX_CALLERS.., _) => Some(format!(
                    "{MAX_CALLERS} calls are waiting already; allowed are no more; try again later"
                )),
                (_, MAX_WAITING..) => Some(
                    "the waiting calls carry as much data as is allowed already; try again later"
                        .to_owned(),
                ),
                _ => None,
            };
            if let Some(message) = full {
                return Err((caller, Error::new(ErrorKind::Capacity, O::NAME, message)));
            }
        }
        self.callers += 1;
        let identity = request.identity();
        if let Some((waiting, callers)) = identity.and_then(|of| self.like(of, &request)) {
            if let (Some(sum), Some(times)) = (waiting.times(), request.times()) {
                *sum = sum.saturating_add(*times);
            }
            callers.add(caller);
            return Ok(());
        }
        self.weight += request.weight();
        if let Some(identity) = identity {
            let number = self.first + self.waiting.len() as u64;
            self.joined.insert(identity, number);
        }
        self.waiting.push_back((request, Callers::new(caller)));
        Ok(())
    }

    /// One that waits and that this one may join.
    fn like(&mut self, identity: u64, request: &O) -> Option<&mut (O, Callers<O::Output>)> {
        let number = *self.joined.get(&identity)?;
        let at = usize::try_from(number - self.first).ok()?;
        let found = self.waiting.get_mut(at);
        found.filter(|(waiting, _)| waiting.is_like(request))
    }

    fn pop(&mut self) -> Option<(O, Callers<O::Output>)> {
        let (request, callers) = self.waiting.pop_front()?;
        if let Some(identity) = request.identity()
            && self.joined.get(&identity) == Some(&self.first)
        {
            self.joined.remove(&identity);
        }
        self.first += 1;
        self.weight -= request.weight();
        self.callers -= callers.len();
        Some((request, callers))
    }
}

impl<O: Queued> AnyBacklog for Backlog<O> {
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }

    fn draw(&mut self, mut room: usize) -> Drawn {
        let mut batch = Batch::<O>::default();
        while let Some((request, _)) = self.waiting.front()
            && (request.weight() <= room || batch.requests.is_empty())
        {
            let Some((request, callers)) = self.pop() else {
                break;
            };
            room = room.saturating_sub(request.weight());
            batch.push(request, callers);
        }
        // What does not fit any more has filled it.
        let full = (self.waiting.front()).is_some_and(|(request, _)| request.weight() > room);
        Drawn {
            batch: Box::new(batch),
            left: if full { 0 } else { room },
        }
    }

    fn put_back(&mut self, left: &mut dyn AnyBatch) {
        let Some(left) = left.as_any().downcast_mut::<Batch<O>>() else {
            return;
        };
        let left: Vec<_> = left.take().collect();
        for (request, callers) in left.into_iter().rev() {
            self.weight += request.weight();
            self.callers += callers.len();
            self.first -= 1;
            self.waiting.push_front((request, callers));
        }
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn refuse(&mut self, failure: &Failure) {
        while let Some((_, callers)) = self.pop() {
            callers.refuse(|| failure.error(O::NAME));
        }
    }
}
