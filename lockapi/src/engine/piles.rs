//! Requests of one kind that wait together for their statement.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::contain;
use super::link::Link;
use crate::error::{Error, ErrorKind, Failure, Result};
use crate::seam::{Connection, Operation};

/// The most requests in one statement, of the usual weight.
const MAX_BATCH: usize = 2048;
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

    /// The same of one request.
    fn is_repeatable(&self) -> bool {
        Self::REPEATABLE
    }

    /// How long its answer may take, if not as long as any on the lane: on a connection that is open,
    /// and again, with the time that connecting takes, on a fresh one.
    fn limit(&self) -> Option<Duration> {
        None
    }

    /// How much of a statement it takes; a statement has room for 2048.
    fn weight(&self) -> usize {
        1
    }

    /// What it may find locked by a transaction of a program, as a number: requests of the same
    /// place wait for the same.
    fn place(&self) -> Option<u64> {
        None
    }
}

/// Answers one request, once, and must not block. It also answers when it is dropped, because the
/// batcher ended while a statement was under way.
pub(crate) struct Reply<T>(Option<Answer<T>>);

type Answer<T> = Box<dyn FnOnce(Result<T>, Repeated) + Send>;

/// Whether the request was also sent before, without an answer. The server may still be carrying out
/// that first try: the repetition does not see what it does, and may do it once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repeated(pub(crate) bool);

impl<T: 'static> Reply<T> {
    pub(crate) fn new(answer: impl FnOnce(Result<T>) + Send + 'static) -> Self {
        Self::told(|outcome, _| answer(outcome))
    }

    /// For requests whose repetition may be answered differently while the first try runs.
    pub(crate) fn told(answer: impl FnOnce(Result<T>, Repeated) + Send + 'static) -> Self {
        Self(Some(Box::new(answer)))
    }
}

impl<T> Reply<T> {
    pub(crate) fn send(self, outcome: Result<T>) {
        self.send_told(outcome, Repeated(false));
    }

    fn send_told(mut self, outcome: Result<T>, repeated: Repeated) {
        self.answer(outcome, repeated);
    }

    fn answer(&mut self, outcome: Result<T>, repeated: Repeated) {
        if let Some(answer) = self.0.take() {
            contain(|| answer(outcome, repeated));
        }
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        let message = "the task that sent the statement ended before the answer came";
        let error = Error::new(ErrorKind::Indeterminate, "end", message);
        self.answer(Err(error), Repeated(false));
    }
}

pub(crate) type Served<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + 'a>>;

/// Requests that wait together for their statement.
pub(crate) trait Pile<N>: Send + 'static {
    fn as_any(&mut self) -> &mut dyn Any;
    /// Runs one statement for as many as fit and answers them.
    fn serve<'a>(&'a mut self, link: &'a mut Link<N>) -> Served<'a>;
    /// Takes out the requests that the next statement would have carried, divided into at most so
    /// many piles.
    fn split(&mut self, parts: usize) -> Vec<Box<dyn Pile<N>>>;
    /// Takes those out of `fresh` that want what this pile waits for.
    fn join(&mut self, fresh: &mut dyn Pile<N>);
    /// Fails the requests that the next statement would have carried.
    fn refuse(&mut self, failure: &Failure);
    /// Whether a statement whose answer was lost may be sent again.
    fn is_repeatable(&self) -> bool;
    /// The shortest time that an answer may take of those that the next statement would carry.
    fn limit(&self) -> Option<Duration> {
        None
    }
    fn is_empty(&self) -> bool;

    /// Fails all.
    fn refuse_all(&mut self, failure: &Failure) {
        while !self.is_empty() {
            self.refuse(failure);
        }
    }
}

/// Divides a batch into at most so many parts.
pub(crate) fn divide<T>(batch: Vec<T>, parts: usize) -> impl Iterator<Item = Vec<T>> {
    let size = batch.len().div_ceil(parts.max(1));
    let mut rest = batch.into_iter();
    std::iter::from_fn(move || {
        let part: Vec<T> = rest.by_ref().take(size).collect();
        (!part.is_empty()).then_some(part)
    })
}

/// Requests that need nothing but their statement.
pub(crate) struct Requests<O: Operation> {
    asked: Vec<O>,
    replies: Vec<Reply<O::Output>>,
}

impl<O: Operation> Default for Requests<O> {
    fn default() -> Self {
        Self {
            asked: Vec::new(),
            replies: Vec::new(),
        }
    }
}

impl<O: Queued> Requests<O> {
    pub(crate) fn add(&mut self, asked: O, reply: Reply<O::Output>) {
        self.asked.push(asked);
        self.replies.push(reply);
    }

    #[cfg(test)]
    pub(super) fn asked(&self) -> &[O] {
        &self.asked
    }

    /// Where the next statement's requests start.
    fn start(&self) -> usize {
        let last = self.asked.len().saturating_sub(1);
        let mut room = MAX_BATCH;
        let fitting = self.asked.iter().rev().take_while(|one| {
            let fits = one.weight() <= room;
            room = room.saturating_sub(one.weight());
            fits
        });
        // One that is heavier than a statement's room goes alone.
        last.min(self.asked.len() - fitting.count())
    }

    /// Takes out all from a place on.
    fn take(&mut self, from: usize) -> Vec<(O, Reply<O::Output>)> {
        let replies = self.replies.drain(from..);
        self.asked.drain(from..).zip(replies).collect()
    }
}

impl<O: Queued> FromIterator<(O, Reply<O::Output>)> for Requests<O> {
    fn from_iter<I: IntoIterator<Item = (O, Reply<O::Output>)>>(requests: I) -> Self {
        let (asked, replies) = requests.into_iter().unzip();
        Self { asked, replies }
    }
}

impl<O: Queued, N: Connection + 'static> Pile<N> for Requests<O> {
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }

    fn serve<'a>(&'a mut self, link: &'a mut Link<N>) -> Served<'a> {
        Box::pin(async move {
            let from = self.start();
            let answers = link.perform(&self.asked[from..]).await?;
            self.asked.truncate(from);
            for (reply, answer) in self.replies.drain(from..).zip(answers) {
                reply.send_told(Ok(answer), link.repeated);
            }
            Ok(())
        })
    }

    fn split(&mut self, parts: usize) -> Vec<Box<dyn Pile<N>>> {
        let batch = self.take(self.start());
        divide(batch, parts)
            .map(|part| -> Box<dyn Pile<N>> { Box::new(part.into_iter().collect::<Self>()) })
            .collect()
    }

    fn join(&mut self, fresh: &mut dyn Pile<N>) {
        let place = self.asked.first().and_then(Queued::place);
        let Some(fresh) = fresh.as_any().downcast_mut::<Self>() else {
            return;
        };
        if place.is_some() && fresh.asked.iter().any(|one| one.place() == place) {
            for (asked, reply) in fresh.take(0) {
                let pile = if asked.place() == place {
                    &mut *self
                } else {
                    &mut *fresh
                };
                pile.add(asked, reply);
            }
        }
    }

    fn refuse(&mut self, failure: &Failure) {
        let from = self.start();
        self.asked.truncate(from);
        for reply in self.replies.drain(from..) {
            reply.send(Err(failure.error(O::NAME)));
        }
    }

    fn is_repeatable(&self) -> bool {
        self.asked[self.start()..].iter().all(Queued::is_repeatable)
    }

    fn limit(&self) -> Option<Duration> {
        self.asked[self.start()..]
            .iter()
            .filter_map(Queued::limit)
            .min()
    }

    fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }
}
