//! The requests of one kind that wait for a statement.

use std::any::Any;
use std::collections::VecDeque;
use std::collections::hash_map::Entry;

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
    /// Takes back what a statement left, before what came meanwhile for the same.
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

/// See [`AnyBacklog`]. In the order of arrival; a request that is like one that waits joins it. What statements
/// left has no more than half of the next one while others wait, so that it keeps nobody from a turn who wants
/// something else; whoever wants the same comes after it.
pub(super) struct Backlog<O: Operation> {
    /// What statements left, and what came for the same, in its order.
    left: VecDeque<(O, Callers<O::Output>)>,
    /// How many of those have each place.
    left_places: FxHashMap<u64, usize>,
    /// Whether the first that waits did not fit beside what was left.
    passed: bool,
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
            left: VecDeque::new(),
            left_places: FxHashMap::default(),
            passed: false,
            waiting: VecDeque::new(),
            first: 0,
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

    /// Takes note of one that is among those that are left.
    fn enter(&mut self, (request, callers): &(O, Callers<O::Output>)) {
        self.weight += request.weight();
        self.callers += callers.len();
        for place in request.places() {
            *self.left_places.entry(place).or_default() += 1;
        }
    }

    fn pop_left(&mut self) -> Option<(O, Callers<O::Output>)> {
        let (request, callers) = self.left.pop_front()?;
        self.weight -= request.weight();
        self.callers -= callers.len();
        for place in request.places() {
            if let Entry::Occupied(mut many) = self.left_places.entry(place) {
                *many.get_mut() -= 1;
                if *many.get() == 0 {
                    many.remove();
                }
            }
        }
        Some((request, callers))
    }

    /// Adds what is left to a batch, of so much weight at most, or one to an empty batch. Returns what is not used.
    fn draw_left(&mut self, batch: &mut Batch<O>, mut room: usize) -> usize {
        while fits(&self.left, room, batch)
            && let Some((request, callers)) = self.pop_left()
        {
            room = room.saturating_sub(request.weight());
            batch.push(request, callers);
        }
        room
    }

    /// Whether something is left that wants the same.
    fn is_behind(&self, request: &O) -> bool {
        let mut places = request.places();
        !self.left.is_empty() && places.any(|place| self.left_places.contains_key(&place))
    }
}

/// Whether there is room for the first.
fn fits<O: Queued>(
    waiting: &VecDeque<(O, Callers<O::Output>)>,
    room: usize,
    batch: &Batch<O>,
) -> bool {
    let first = waiting.front();
    first.is_some_and(|(one, _)| one.weight() <= room || batch.requests.is_empty())
}

impl<O: Queued> AnyBacklog for Backlog<O> {
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }

    fn draw(&mut self, room: usize) -> Drawn {
        let mut batch = Batch::<O>::default();
        let share = if self.waiting.is_empty() {
            room
        } else {
            room.div_ceil(2)
        };
        // One that needs more than the other half has all of it every other time.
        let first = self.waiting.front();
        let large = first.is_some_and(|(one, _)| one.weight() > room - share);
        self.passed = large && !self.passed;
        let mut room = if large && !self.passed {
            room
        } else {
            self.draw_left(&mut batch, share) + room - share
        };
        while fits(&self.waiting, room, &batch)
            && let Some((request, callers)) = self.pop()
        {
            if self.is_behind(&request) {
                let behind = (request, callers);
                self.enter(&behind);
                self.left.push_back(behind);
                continue;
            }
            room = room.saturating_sub(request.weight());
            batch.push(request, callers);
        }
        let room = self.draw_left(&mut batch, room);
        // What does not fit any more has filled it.
        let over = |waiting: &VecDeque<(O, _)>| {
            waiting.front().is_some_and(|(one, _)| one.weight() > room)
        };
        let full = over(&self.left) || over(&self.waiting);
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
        for one in left.into_iter().rev() {
            self.enter(&one);
            self.left.push_front(one);
        }
    }

    fn is_empty(&self) -> bool {
        self.left.is_empty() && self.waiting.is_empty()
    }

    fn refuse(&mut self, failure: &Failure) {
        while let Some((_, callers)) = self.pop_left().or_else(|| self.pop()) {
            callers.refuse(|| failure.error(O::NAME));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::batcher::{Repeated, Reply};
    use crate::limit::Take;

    fn take(key: &str, nth: i64) -> Take {
        Take {
            namespace: String::new(),
            key: key.to_owned(),
            // They are not alike.
            price: 1 + nth,
            depth: 1000,
            times: 1,
            relaxed: false,
            read_first: false,
        }
    }

    fn add(backlog: &mut Backlog<Take>, key: &str, nth: i64) {
        let reply = Reply::new(|_, _: Repeated| ());
        let caller = Caller { times: 1, reply };
        assert!(backlog.add(take(key, nth), caller, 0).is_ok());
    }

    fn keys(drawn: &mut Drawn) -> Vec<(String, i64)> {
        let batch = drawn.batch.as_any().downcast_mut::<Batch<Take>>().unwrap();
        let requests = batch.requests.iter();
        requests
            .map(|one| (one.key.clone(), one.price - 1))
            .collect()
    }

    /// However often the requests for one key come back, who wants another one has a turn in each statement, and
    /// nobody overtakes one who wants the same.
    #[test]
    fn what_is_left_keeps_nobody_from_a_turn() {
        const ROOM: usize = 64;
        let mut backlog = Backlog::<Take>::default();
        for nth in 0..200 {
            add(&mut backlog, "hot", nth);
        }
        for nth in 0..100 {
            add(&mut backlog, "other", nth);
        }
        let mut others = Vec::new();
        for round in 0..4 {
            let mut drawn = backlog.draw(ROOM);
            let (hot, other): (Vec<_>, Vec<_>) =
                keys(&mut drawn).into_iter().partition(|one| one.0 == "hot");
            assert!(hot.len() + other.len() <= ROOM);
            assert!(!hot.is_empty());
            for (at, one) in (0..).zip(&hot) {
                assert_eq!(one.1, at, "they are in their order");
            }
            assert!(round == 0 || !other.is_empty(), "others have a turn");
            others.extend(other.into_iter().map(|one| one.1));
            // Nothing is decided of the hot key.
            let batch = drawn.batch.as_any().downcast_mut::<Batch<Take>>().unwrap();
            for (request, callers) in batch.take() {
                if request.key == "hot" {
                    batch.push(request, callers);
                }
            }
            backlog.put_back(drawn.batch.as_mut());
            add(&mut backlog, "hot", 200 + round);
        }
        assert_eq!(
            others,
            (0..i64::try_from(others.len()).unwrap()).collect::<Vec<_>>()
        );
        assert!(others.len() > ROOM, "{}", others.len());
        let mut hot = Vec::new();
        while !backlog.is_empty() {
            let mut drawn = backlog.draw(ROOM);
            hot.extend(keys(&mut drawn).into_iter().filter(|one| one.0 == "hot"));
        }
        assert!(hot.into_iter().map(|one| one.1).eq(0..204));
        assert_eq!((backlog.callers, backlog.weight), (0, 0));
        assert!(backlog.left_places.is_empty());
    }
}
