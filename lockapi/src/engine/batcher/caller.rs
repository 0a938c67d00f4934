//! Callers that wait for the answer to a request.

use std::iter;

use tokio::sync::oneshot;

use crate::engine::catch_panic;
use crate::error::{Error, ErrorKind, Result};

/// Whether the request was also sent before, without an answer. The server may still be carrying out
/// that first try: the repetition does not see what it does, and may do it once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repeated(pub(crate) bool);

/// Where an answer goes. It must not block.
pub(crate) trait Answer<T>: Send {
    /// Called once.
    fn answer(self: Box<Self>, outcome: Result<T>, repeated: Repeated);

    /// Whether a caller still waits for it.
    fn is_awaited(&self) -> bool {
        true
    }
}

impl<T, F: FnOnce(Result<T>, Repeated) + Send> Answer<T> for F {
    fn answer(self: Box<Self>, outcome: Result<T>, repeated: Repeated) {
        self(outcome, repeated);
    }
}

/// A caller that waits, or has left.
pub(super) struct Waiting<T>(pub(super) oneshot::Sender<Result<T>>);

impl<T: Send> Answer<T> for Waiting<T> {
    fn answer(self: Box<Self>, outcome: Result<T>, _: Repeated) {
        // A caller that left does not want the answer.
        let _left = self.0.send(outcome);
    }

    fn is_awaited(&self) -> bool {
        !self.0.is_closed()
    }
}

/// Answers one request, once. It also answers when it is dropped, because the batcher ended while a
/// statement was under way.
pub(crate) struct Reply<T>(Option<Box<dyn Answer<T>>>);

impl<T> Reply<T> {
    pub(crate) fn new(answer: impl Answer<T> + 'static) -> Self {
        Self(Some(Box::new(answer)))
    }

    pub(crate) fn send(self, outcome: Result<T>) {
        self.send_repeated(outcome, Repeated(false));
    }

    pub(crate) fn send_repeated(mut self, outcome: Result<T>, repeated: Repeated) {
        self.answer(outcome, repeated);
    }

    fn is_awaited(&self) -> bool {
        self.0.as_ref().is_some_and(|answer| answer.is_awaited())
    }

    /// Lets go of a caller that left.
    fn forget(mut self) {
        self.0 = None;
    }

    fn answer(&mut self, outcome: Result<T>, repeated: Repeated) {
        if let Some(answer) = self.0.take() {
            catch_panic(|| answer.answer(outcome, repeated));
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

/// A caller, and how often it makes the request.
pub(crate) struct Caller<T> {
    pub(crate) times: i64,
    pub(crate) reply: Reply<T>,
}

/// Those who wait for one request, in the order of arrival. There is one at least.
pub(crate) struct Callers<T> {
    first: Caller<T>,
    more: Vec<Caller<T>>,
    /// How often the request was sent again.
    pub(crate) tries: u32,
}

impl<T> Callers<T> {
    pub(super) fn new(first: Caller<T>) -> Self {
        Self {
            first,
            more: Vec::new(),
            tries: 0,
        }
    }

    pub(super) fn append(&mut self, others: Self) {
        self.more.push(others.first);
        self.more.extend(others.more);
    }

    pub(crate) fn len(&self) -> usize {
        1 + self.more.len()
    }

    pub(crate) fn first(self) -> Reply<T> {
        self.first.reply
    }

    /// Puts those together again of whom some are served.
    pub(crate) fn of(callers: Vec<Caller<T>>, tries: u32) -> Option<Self> {
        let mut callers = callers.into_iter();
        Some(Self {
            first: callers.next()?,
            more: callers.collect(),
            tries,
        })
    }

    /// Whether all still wait.
    pub(super) fn are_awaited(&self) -> bool {
        self.iter().all(|caller| caller.reply.is_awaited())
    }

    /// Lets go of all, who have left.
    pub(super) fn forget(self) {
        for caller in self {
            caller.reply.forget();
        }
    }

    /// Those who still wait, and how often the others made the request.
    pub(super) fn awaited(self) -> (Option<Self>, i64) {
        if self.are_awaited() {
            return (Some(self), 0);
        }
        let tries = self.tries;
        let (awaited, left): (Vec<_>, Vec<_>) = self
            .into_iter()
            .partition(|caller| caller.reply.is_awaited());
        let times = left.iter().map(|caller| caller.times).sum();
        if let Some(left) = Self::of(left, tries) {
            left.forget();
        }
        (Self::of(awaited, tries), times)
    }

    fn iter(&self) -> impl Iterator<Item = &Caller<T>> {
        iter::once(&self.first).chain(&self.more)
    }

    /// Tells all of them.
    pub(crate) fn refuse(self, error: impl Fn() -> Error) {
        for caller in self {
            caller.reply.send(Err(error()));
        }
    }
}

impl<T> IntoIterator for Callers<T> {
    type Item = Caller<T>;
    type IntoIter = iter::Chain<iter::Once<Caller<T>>, std::vec::IntoIter<Caller<T>>>;

    fn into_iter(self) -> Self::IntoIter {
        iter::once(self.first).chain(self.more)
    }
}
