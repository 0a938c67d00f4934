//! The requests of a batcher: operations, and the callers that wait for their answers.

use std::any::{Any, TypeId};
use std::future::Future;
use std::iter;
use std::time::Duration;

use super::batch::{Batch, Requests, Served, serve};
use super::caller::{Caller, Callers};
use crate::driver::Operation;
use crate::engine::connection::OpenConnection;
use crate::error::{Error, Failure};

/// The most weight that a statement carries.
pub(super) const MAX_WEIGHT: usize = 2048;
/// The weight of a request that needs a statement of its own.
pub(crate) const ALONE: usize = MAX_WEIGHT;

/// An operation that a batcher runs. The requests of a batcher are of one namespace, that of its backend:
/// statements take it from the first of a batch.
pub(crate) trait Queued: Operation {
    /// The name that errors tell.
    const NAME: &'static str;
    /// Whether a request whose answer was lost may be sent again.
    const REPEATABLE: bool = true;
    /// Whether it gives back, ends or keeps what the program has. Such requests go before others, are
    /// never refused because there are too many, and are sent whether or not anybody waits for the
    /// answer.
    const GIVES_BACK: bool = false;

    /// The same as [`REPEATABLE`](Self::REPEATABLE), of one request.
    fn is_repeatable(&self) -> bool {
        Self::REPEATABLE
    }

    /// Whether it is tried again while the lock of a transaction is in its way.
    fn waits(&self) -> bool {
        true
    }

    /// How long its answer may take, if not as long as any: on a connection that is open, and again,
    /// with the time that connecting takes, on a fresh one.
    fn limit(&self) -> Option<Duration> {
        None
    }

    /// Requests of different classes are not in one statement.
    fn class(&self) -> u32 {
        self.limit().map_or(0, class)
    }

    /// How much of a statement it takes; a statement has room for 2048.
    fn weight(&self) -> usize {
        1
    }

    /// The rows that it may find locked by a transaction of a program, as numbers: requests with one in common
    /// may wait for the same.
    fn row_keys(&self) -> impl Iterator<Item = u64> {
        iter::empty()
    }

    /// A number that requests which may be merged have in common.
    fn identity(&self) -> Option<u64> {
        None
    }

    /// Whether two requests of one identity are merged.
    fn is_like(&self, _other: &Self) -> bool {
        false
    }

    /// How often it is made; `None` for requests that are not merged.
    fn times(&mut self) -> Option<&mut i64> {
        None
    }

    /// Runs the statement of a batch. What is left in the batch is sent again.
    fn serve(
        batch: &mut Batch<Self>,
        connection: &mut OpenConnection,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        batch.perform(connection)
    }
}

/// Limits of one class are within a factor of four of each other: the shortest is that of the statement,
/// and must not be much too short for the others.
fn class(limit: Duration) -> u32 {
    let micros = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
    1 + micros.max(1).ilog2() / 2
}

/// What tells the kinds of requests apart: their class, and their type.
pub(super) type KindId = (u32, TypeId);

/// A request that waits, and its callers.
pub(super) struct Pending<O: Operation> {
    pub(super) request: O,
    pub(super) callers: Callers<O::Output>,
}

impl<O: Queued> Pending<O> {
    pub(super) fn boxed(request: O, caller: Caller<O::Output>) -> Box<dyn AnyRequest> {
        let callers = Callers::new(caller);
        Box::new(Self { request, callers })
    }
}

/// A [`Pending`] request without its type: what keeps them in order is compiled once, and not for each operation.
pub(super) trait AnyRequest: Send {
    fn as_any(&mut self) -> &mut dyn Any;
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
    fn kind(&self) -> KindId;
    /// See [`Queued::GIVES_BACK`].
    fn gives_back(&self) -> bool;
    fn is_repeatable(&self) -> bool;
    fn waits(&self) -> bool;
    fn limit(&self) -> Option<Duration>;
    fn weight(&self) -> usize;
    fn row_keys(&self, each: &mut dyn FnMut(u64));
    fn identity(&self) -> Option<u64>;
    /// How many callers wait for it.
    fn callers(&self) -> usize;
    /// Lets the callers of another one join, if the two are alike; otherwise that one is given back.
    fn merge(&mut self, other: Box<dyn AnyRequest>) -> Option<Box<dyn AnyRequest>>;
    /// Drops callers that are gone; nothing remains of a request without callers.
    fn awaited(self: Box<Self>) -> Option<Box<dyn AnyRequest>>;
    /// Fails it, with the error that is made for its name.
    fn refuse(self: Box<Self>, error: &dyn Fn(&'static str) -> Error);
    /// Runs a statement for requests of this type.
    fn serve(&self) -> for<'a> fn(&'a mut Requests, &'a mut OpenConnection) -> Served<'a>;
}

impl<O: Queued> AnyRequest for Pending<O> {
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn kind(&self) -> KindId {
        (self.request.class(), TypeId::of::<O>())
    }

    fn gives_back(&self) -> bool {
        O::GIVES_BACK
    }

    fn is_repeatable(&self) -> bool {
        self.request.is_repeatable()
    }

    fn waits(&self) -> bool {
        self.request.waits()
    }

    fn limit(&self) -> Option<Duration> {
        self.request.limit()
    }

    fn weight(&self) -> usize {
        self.request.weight()
    }

    fn row_keys(&self, each: &mut dyn FnMut(u64)) {
        self.request.row_keys().for_each(each);
    }

    fn identity(&self) -> Option<u64> {
        self.request.identity()
    }

    fn callers(&self) -> usize {
        self.callers.len()
    }

    fn merge(&mut self, mut other: Box<dyn AnyRequest>) -> Option<Box<dyn AnyRequest>> {
        let alike = other.as_any().downcast_ref::<Self>();
        if !alike.is_some_and(|other| self.request.is_like(&other.request)) {
            return Some(other);
        }
        if let Ok(mut other) = other.into_any().downcast::<Self>() {
            if let (Some(sum), Some(times)) = (self.request.times(), other.request.times()) {
                *sum = sum.saturating_add(*times);
            }
            self.callers.append(other.callers);
        }
        None
    }

    fn awaited(self: Box<Self>) -> Option<Box<dyn AnyRequest>> {
        if O::GIVES_BACK || self.callers.are_awaited() {
            return Some(self);
        }
        let Self {
            mut request,
            callers,
        } = *self;
        let (callers, left) = callers.awaited();
        if let Some(times) = request.times() {
            *times -= left;
        }
        let callers = callers?;
        Some(Box::new(Self { request, callers }))
    }

    fn refuse(self: Box<Self>, error: &dyn Fn(&'static str) -> Error) {
        self.callers.refuse(|| error(O::NAME));
    }

    fn serve(&self) -> for<'a> fn(&'a mut Requests, &'a mut OpenConnection) -> Served<'a> {
        serve::<O>
    }
}
