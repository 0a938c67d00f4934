//! The requests of one kind that wait for a statement.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;

use super::batch::Requests;
use super::request::AnyRequest;
use crate::error::Error;

/// The most callers that wait for requests of one kind.
const MAX_CALLERS: usize = 1 << 17;
/// The most weight of requests of one kind that wait.
const MAX_WAITING: usize = 1 << 20;

/// The requests of a statement; there are none if all their callers have left.
pub(super) struct Drawn {
    pub(super) batch: Requests,
    /// How much of the room is left.
    pub(super) left: usize,
}

/// The requests of one kind that wait, in the order of arrival; a request that is like one that waits joins it. What
/// statements left has no more than half of the next one while others wait, so that it keeps nobody from a turn who
/// wants something else; whoever wants the same comes after it.
#[derive(Default)]
pub(super) struct Backlog {
    /// What statements left, and what came for the same rows, in its order.
    left: VecDeque<Box<dyn AnyRequest>>,
    /// How many of those want each row.
    left_keys: FxHashMap<u64, usize>,
    /// Whether the first that waits did not fit beside what was left.
    passed: bool,
    waiting: VecDeque<Box<dyn AnyRequest>>,
    /// The number of the first that waits; they are numbered in their order.
    first: u64,
    /// The numbers of those that others may join, by their identity.
    joined: FxHashMap<u64, u64>,
    callers: usize,
    weight: usize,
}

impl Backlog {
    /// Adds a request, unless too many wait, here or as `isolated`: then it is given back, with why.
    pub(super) fn add(
        &mut self,
        request: Box<dyn AnyRequest>,
        isolated: usize,
    ) -> Result<(), (Box<dyn AnyRequest>, String)> {
        if !request.gives_back() {
            let full = match (self.callers + isolated, self.weight) {
                (MAX_CALLERS.., _) => Some(format!(
                    "{MAX_CALLERS} calls are waiting already; allowed are no more; try again later"
                )),
                (_, MAX_WAITING..) => Some(
                    "the waiting calls are as much work as may wait already; try again later"
                        .to_owned(),
                ),
                _ => None,
            };
            if let Some(message) = full {
                return Err((request, message));
            }
        }
        self.callers += request.callers();
        let identity = request.identity();
        let request = match identity.and_then(|of| self.with_identity(of)) {
            Some(waiting) => match waiting.merge(request) {
                Some(request) => request,
                None => return Ok(()),
            },
            None => request,
        };
        self.weight += request.weight();
        if let Some(identity) = identity {
            let number = self.first + self.waiting.len() as u64;
            self.joined.insert(identity, number);
        }
        self.waiting.push_back(request);
        Ok(())
    }

    /// One that waits and that others may join.
    fn with_identity(&mut self, identity: u64) -> Option<&mut Box<dyn AnyRequest>> {
        let number = *self.joined.get(&identity)?;
        let at = usize::try_from(number - self.first).ok()?;
        self.waiting.get_mut(at)
    }

    fn pop(&mut self) -> Option<Box<dyn AnyRequest>> {
        let request = self.waiting.pop_front()?;
        if let Some(identity) = request.identity()
            && self.joined.get(&identity) == Some(&self.first)
        {
            self.joined.remove(&identity);
        }
        self.first += 1;
        self.weight -= request.weight();
        self.callers -= request.callers();
        Some(request)
    }

    /// Takes note of one that is among those that are left.
    fn enter(&mut self, request: &dyn AnyRequest) {
        self.weight += request.weight();
        self.callers += request.callers();
        request.row_keys(&mut |key| *self.left_keys.entry(key).or_default() += 1);
    }

    fn pop_left(&mut self) -> Option<Box<dyn AnyRequest>> {
        let request = self.left.pop_front()?;
        self.weight -= request.weight();
        self.callers -= request.callers();
        request.row_keys(&mut |key| {
            if let Entry::Occupied(mut many) = self.left_keys.entry(key) {
                *many.get_mut() -= 1;
                if *many.get() == 0 {
                    many.remove();
                }
            }
        });
        Some(request)
    }

    /// Adds what is left to a batch, of so much weight at most, or one to an empty batch. Returns what is not used.
    fn draw_left(&mut self, batch: &mut Requests, mut room: usize) -> usize {
        while fits(&self.left, room, batch)
            && let Some(request) = self.pop_left()
        {
            room = room.saturating_sub(request.weight());
            batch.push(request);
        }
        room
    }

    /// Whether something is left that wants the same.
    fn is_behind(&self, request: &dyn AnyRequest) -> bool {
        let mut behind = false;
        if !self.left.is_empty() {
            request.row_keys(&mut |key| behind |= self.left_keys.contains_key(&key));
        }
        behind
    }

    /// Takes out the requests of the next statement, of so much weight at most, or one that has more.
    pub(super) fn draw(&mut self, room: usize) -> Drawn {
        let mut batch = Requests::default();
        let share = if self.waiting.is_empty() {
            room
        } else {
            room.div_ceil(2)
        };
        // One that needs more than the other half has all of it every other time.
        let large = is_over(&self.waiting, room - share);
        self.passed = large && !self.passed;
        let mut room = if large && !self.passed {
            room
        } else {
            self.draw_left(&mut batch, share) + room - share
        };
        while fits(&self.waiting, room, &batch)
            && let Some(request) = self.pop()
        {
            if self.is_behind(request.as_ref()) {
                self.enter(request.as_ref());
                self.left.push_back(request);
                continue;
            }
            room = room.saturating_sub(request.weight());
            batch.push(request);
        }
        let room = self.draw_left(&mut batch, room);
        // What does not fit any more has filled it.
        let full = is_over(&self.left, room) || is_over(&self.waiting, room);
        Drawn {
            batch,
            left: if full { 0 } else { room },
        }
    }

    /// Takes back what a statement left, before what came meanwhile for the same.
    pub(super) fn put_back(&mut self, left: &mut Requests) {
        for request in left.take().into_iter().rev() {
            self.enter(request.as_ref());
            self.left.push_front(request);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.left.is_empty() && self.waiting.is_empty()
    }

    /// How many requests wait.
    pub(super) fn len(&self) -> usize {
        self.left.len() + self.waiting.len()
    }

    /// Takes out the first of them, so many at most.
    pub(super) fn take_first(&mut self, many: usize) -> Vec<Box<dyn AnyRequest>> {
        let next = || self.pop_left().or_else(|| self.pop());
        std::iter::from_fn(next).take(many).collect()
    }

    /// Fails all, with errors made for their name.
    pub(super) fn refuse(&mut self, error: &dyn Fn(&'static str) -> Error) {
        while let Some(request) = self.pop_left().or_else(|| self.pop()) {
            request.refuse(error);
        }
    }
}

/// Whether there is room for the first.
fn fits(waiting: &VecDeque<Box<dyn AnyRequest>>, room: usize, batch: &Requests) -> bool {
    !waiting.is_empty() && (batch.is_empty() || !is_over(waiting, room))
}

/// Whether the first has more weight than that.
fn is_over(waiting: &VecDeque<Box<dyn AnyRequest>>, room: usize) -> bool {
    let first = waiting.front();
    first.is_some_and(|request| request.weight() > room)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::batcher::batch::Typed;
    use crate::engine::batcher::request::Pending;
    use crate::engine::batcher::{Caller, Repeated, Reply};
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

    fn add(backlog: &mut Backlog, key: &str, nth: i64) {
        let reply = Reply::new(|_, _: Repeated| ());
        let request = Pending::boxed(take(key, nth), Caller { times: 1, reply });
        assert!(backlog.add(request, 0).is_ok());
    }

    fn keys(drawn: &mut Drawn) -> Vec<(String, i64)> {
        let batch = Typed::<Take>::from(&mut drawn.batch);
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
        let mut backlog = Backlog::default();
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
            let mut batch = Typed::<Take>::from(&mut drawn.batch);
            for (request, callers) in batch.take() {
                if request.key == "hot" {
                    batch.push(request, callers);
                }
            }
            drop(batch);
            backlog.put_back(&mut drawn.batch);
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
        assert!(backlog.left_keys.is_empty());
    }
}
