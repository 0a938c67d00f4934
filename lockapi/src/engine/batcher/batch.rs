//! The requests of one statement.

use std::any::{Any, TypeId};
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use rustc_hash::FxHashSet;

use super::KindId;
use super::outbox::Outbox;
use super::request::{Callers, MAX_WEIGHT, Queued, Reply};
use crate::driver::Operation;
use crate::engine::connection::OpenConnection;
use crate::error::{Failure, Result};

pub(super) type Served<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + 'a>>;

/// The requests of one statement, whatever their kind.
pub(super) trait AnyBatch: Send {
    fn as_any(&mut self) -> &mut dyn Any;
    /// Runs the statement and answers the requests; what is left is sent again.
    fn serve<'a>(&'a mut self, connection: &'a mut OpenConnection) -> Served<'a>;
    /// Divides it into at most this number of batches.
    fn split(&mut self, parts: usize) -> Vec<Box<dyn AnyBatch>>;
    /// Takes out what a statement has no room for.
    fn overflow(&mut self) -> Option<Box<dyn AnyBatch>>;
    /// Puts these behind its own.
    fn append(&mut self, behind: &mut dyn AnyBatch);
    /// Takes those out of `fresh` that want what this one waits for.
    fn meeting(&self, fresh: &mut dyn AnyBatch) -> Option<Box<dyn AnyBatch>>;
    /// Fails all.
    fn refuse(&mut self, failure: &Failure);
    /// Drops callers that are gone, and requests without callers.
    fn forget_left(&mut self);
    /// Callers that share a request are answered through this, a few at a time.
    fn tell_through(&mut self, outbox: &Outbox);
    /// Whether it may be sent again when its answer was lost.
    fn is_repeatable(&self) -> bool;
    /// Whether its requests are tried again while the lock of a transaction is in their way.
    fn waits(&self) -> bool;
    /// The shortest time that an answer may take.
    fn limit(&self) -> Option<Duration>;
    fn is_empty(&self) -> bool;
    /// How many callers wait for it.
    fn callers(&self) -> usize;
    /// The kind of its requests.
    fn kind(&self) -> Option<KindId>;
}

/// The requests of one statement, with those who wait for each.
pub(crate) struct Batch<O: Operation> {
    pub(crate) requests: Vec<O>,
    pub(crate) callers: Vec<Callers<O::Output>>,
    outbox: Option<Outbox>,
}

impl<O: Operation> Default for Batch<O> {
    fn default() -> Self {
        Self {
            requests: Vec::new(),
            callers: Vec::new(),
            outbox: None,
        }
    }
}

impl<O: Queued> Batch<O> {
    pub(crate) fn push(&mut self, request: O, callers: Callers<O::Output>) {
        self.requests.push(request);
        self.callers.push(callers);
    }

    /// Takes all out.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = (O, Callers<O::Output>)> + use<O> {
        let requests = std::mem::take(&mut self.requests);
        requests.into_iter().zip(std::mem::take(&mut self.callers))
    }

    /// Answers this number of callers of a request.
    pub(crate) fn tell<I>(&self, many: usize, answers: I)
    where
        I: Iterator<Item = (Reply<O::Output>, Result<O::Output>)> + Send + 'static,
    {
        match &self.outbox {
            Some(outbox) => outbox.add(many, answers),
            None => answers.for_each(|(reply, outcome)| reply.send(outcome)),
        }
    }

    /// Runs the statement and gives each request its answer.
    pub(crate) async fn perform(&mut self, connection: &mut OpenConnection) -> Result<(), Failure> {
        let answers = connection.perform(&self.requests).await?;
        self.requests.clear();
        for (callers, answer) in self.callers.drain(..).zip(answers) {
            callers.first().send_told(Ok(answer), connection.repeated);
        }
        Ok(())
    }
}

impl<O: Queued> FromIterator<(O, Callers<O::Output>)> for Batch<O> {
    fn from_iter<I: IntoIterator<Item = (O, Callers<O::Output>)>>(requests: I) -> Self {
        let (requests, callers) = requests.into_iter().unzip();
        Self {
            requests,
            callers,
            outbox: None,
        }
    }
}

impl<O: Queued> AnyBatch for Batch<O> {
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }

    fn serve<'a>(&'a mut self, connection: &'a mut OpenConnection) -> Served<'a> {
        Box::pin(O::serve(self, connection))
    }

    fn split(&mut self, parts: usize) -> Vec<Box<dyn AnyBatch>> {
        let size = self.requests.len().div_ceil(parts.max(1));
        let mut rest = self.take();
        std::iter::from_fn(|| {
            let part: Self = rest.by_ref().take(size).collect();
            (!part.requests.is_empty()).then(|| Box::new(part) as Box<dyn AnyBatch>)
        })
        .collect()
    }

    fn overflow(&mut self) -> Option<Box<dyn AnyBatch>> {
        let mut room = MAX_WEIGHT;
        let fits = self.requests.iter().take_while(|request| {
            let fits = request.weight() <= room;
            room = room.saturating_sub(request.weight());
            fits
        });
        let fits = fits.count().max(1);
        if fits >= self.requests.len() {
            return None;
        }
        Some(Box::new(Self {
            requests: self.requests.split_off(fits),
            callers: self.callers.split_off(fits),
            outbox: None,
        }))
    }

    fn append(&mut self, behind: &mut dyn AnyBatch) {
        if let Some(behind) = behind.as_any().downcast_mut::<Self>() {
            self.requests.append(&mut behind.requests);
            self.callers.append(&mut behind.callers);
        }
    }

    fn meeting(&self, fresh: &mut dyn AnyBatch) -> Option<Box<dyn AnyBatch>> {
        let fresh = fresh.as_any().downcast_mut::<Self>()?;
        let places: FxHashSet<u64> = self.requests.iter().flat_map(Queued::places).collect();
        let meets = |request: &O| request.places().any(|place| places.contains(&place));
        if !fresh.requests.iter().any(meets) {
            return None;
        }
        let (meeting, others): (Vec<_>, Vec<_>) =
            fresh.take().partition(|(request, _)| meets(request));
        for (request, callers) in others {
            fresh.push(request, callers);
        }
        Some(Box::new(meeting.into_iter().collect::<Self>()))
    }

    fn refuse(&mut self, failure: &Failure) {
        for (_, callers) in self.take() {
            callers.refuse(|| failure.error(O::NAME));
        }
    }

    fn forget_left(&mut self) {
        if O::GIVES_BACK || self.callers.iter().all(Callers::are_wanted) {
            return;
        }
        for (mut request, callers) in self.take() {
            let (callers, left) = callers.wanted();
            if let Some(times) = request.times() {
                *times -= left;
            }
            if let Some(callers) = callers {
                self.push(request, callers);
            }
        }
    }

    fn tell_through(&mut self, outbox: &Outbox) {
        self.outbox = Some(outbox.clone());
    }

    fn is_repeatable(&self) -> bool {
        self.requests.iter().all(Queued::is_repeatable)
    }

    fn waits(&self) -> bool {
        self.requests.iter().all(Queued::waits)
    }

    fn limit(&self) -> Option<Duration> {
        self.requests.iter().filter_map(Queued::limit).min()
    }

    fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    fn callers(&self) -> usize {
        self.callers.iter().map(Callers::len).sum()
    }

    fn kind(&self) -> Option<KindId> {
        let first = self.requests.first()?;
        Some((first.class(), TypeId::of::<O>()))
    }
}
