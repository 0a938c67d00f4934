//! The requests of one statement.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::time::Duration;

use rustc_hash::FxHashSet;

use super::caller::{Callers, Reply};
use super::outbox::Outbox;
use super::request::{AnyRequest, KindId, MAX_WEIGHT, Pending, Queued};
use crate::driver::{Operation, Query};
use crate::engine::connection::OpenConnection;
use crate::error::{Error, Failure, Result};

pub(super) type Served<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + 'a>>;

/// Requests of one kind that travel together, in their order.
#[derive(Default)]
pub(super) struct Requests {
    all: VecDeque<Box<dyn AnyRequest>>,
    outbox: Option<Outbox>,
}

impl Requests {
    pub(super) fn push(&mut self, request: Box<dyn AnyRequest>) {
        self.all.push_back(request);
    }

    /// Takes all out.
    pub(super) fn take(&mut self) -> VecDeque<Box<dyn AnyRequest>> {
        std::mem::take(&mut self.all)
    }

    /// Runs the statement and answers the requests; what is left is sent again.
    pub(super) fn serve<'a>(&'a mut self, connection: &'a mut OpenConnection) -> Served<'a> {
        match self.all.front().map(|first| first.serve()) {
            Some(serve) => serve(self, connection),
            None => Box::pin(async { Ok(()) }),
        }
    }

    /// Divides them into at most this number of parts.
    pub(super) fn split(&mut self, parts: usize) -> Vec<Self> {
        let size = self.all.len().div_ceil(parts.max(1));
        let mut rest = self.take();
        let mut parts = Vec::new();
        while !rest.is_empty() {
            let behind = rest.split_off(size.min(rest.len()));
            parts.push(Self::from(std::mem::replace(&mut rest, behind)));
        }
        parts
    }

    /// Takes out what a statement has no room for.
    pub(super) fn overflow(&mut self) -> Option<Self> {
        let mut room = MAX_WEIGHT;
        let fits = self.all.iter().take_while(|request| {
            let weight = request.weight();
            let fits = weight <= room;
            room = room.saturating_sub(weight);
            fits
        });
        let fits = fits.count().max(1);
        (fits < self.all.len()).then(|| Self::from(self.all.split_off(fits)))
    }

    /// Puts these behind its own.
    pub(super) fn append(&mut self, mut behind: Self) {
        self.all.append(&mut behind.all);
    }

    /// Takes those out of `fresh` that want what one of these waits for.
    pub(super) fn meeting(&self, fresh: &mut Self) -> Option<Self> {
        // Of any class.
        let of_type = |kind: KindId| kind.1;
        if self.kind().map(of_type) != fresh.kind().map(of_type) {
            return None;
        }
        let mut keys = FxHashSet::default();
        for request in &self.all {
            request.row_keys(&mut |key| {
                keys.insert(key);
            });
        }
        let meets = |request: &dyn AnyRequest| {
            let mut meets = false;
            request.row_keys(&mut |key| meets |= keys.contains(&key));
            meets
        };
        if keys.is_empty() || !fresh.all.iter().any(|request| meets(request.as_ref())) {
            return None;
        }
        let all = fresh.take().into_iter();
        let (meeting, others) = all.partition(|request| meets(request.as_ref()));
        fresh.all = others;
        Some(Self::from(meeting))
    }

    /// Fails all with errors made for their name.
    pub(super) fn refuse(&mut self, error: &dyn Fn(&'static str) -> Error) {
        for request in self.take() {
            request.refuse(error);
        }
    }

    /// Drops callers that are gone, and requests without callers.
    pub(super) fn drop_cancelled(&mut self) {
        let all = self.take().into_iter();
        self.all = all.filter_map(AnyRequest::awaited).collect();
    }

    /// Callers that share a request are answered through this, a few at a time.
    pub(super) fn answer_through(&mut self, outbox: &Outbox) {
        self.outbox = Some(outbox.clone());
    }

    /// Whether they may be sent again when their answer was lost.
    pub(super) fn are_repeatable(&self) -> bool {
        self.all.iter().all(|request| request.is_repeatable())
    }

    /// Whether they are tried again while the lock of a transaction is in their way.
    pub(super) fn wait(&self) -> bool {
        self.all.iter().all(|request| request.waits())
    }

    /// The shortest time that an answer may take.
    pub(super) fn limit(&self) -> Option<Duration> {
        self.all.iter().filter_map(|request| request.limit()).min()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How many callers wait for them.
    pub(super) fn callers(&self) -> usize {
        self.all.iter().map(|request| request.callers()).sum()
    }

    pub(super) fn kind(&self) -> Option<KindId> {
        self.all.front().map(|first| first.kind())
    }
}

impl From<VecDeque<Box<dyn AnyRequest>>> for Requests {
    fn from(all: VecDeque<Box<dyn AnyRequest>>) -> Self {
        Self { all, outbox: None }
    }
}

/// Runs the statement of requests of one type.
pub(super) fn serve<'a, O: Queued>(
    requests: &'a mut Requests,
    connection: &'a mut OpenConnection,
) -> Served<'a> {
    Box::pin(async move {
        let mut batch = Typed::<O>::from(requests);
        O::serve(&mut batch, connection).await
    })
}

/// Requests with their type; what is left of them goes back, also when the statement is given up.
pub(super) struct Typed<'a, O: Queued> {
    requests: &'a mut Requests,
    batch: Batch<O>,
}

impl<'a, O: Queued> From<&'a mut Requests> for Typed<'a, O> {
    fn from(requests: &'a mut Requests) -> Self {
        let mut batch = Batch::with_capacity(requests.all.len());
        batch.outbox.clone_from(&requests.outbox);
        for request in requests.take() {
            // Those of one kind are of one type.
            if let Ok(pending) = request.into_any().downcast::<Pending<O>>() {
                batch.push(pending.request, pending.callers);
            }
        }
        Self { requests, batch }
    }
}

impl<O: Queued> Drop for Typed<'_, O> {
    fn drop(&mut self) {
        for (request, callers) in self.batch.take() {
            self.requests.push(Box::new(Pending { request, callers }));
        }
    }
}

impl<O: Queued> Deref for Typed<'_, O> {
    type Target = Batch<O>;

    fn deref(&self) -> &Batch<O> {
        &self.batch
    }
}

impl<O: Queued> DerefMut for Typed<'_, O> {
    fn deref_mut(&mut self) -> &mut Batch<O> {
        &mut self.batch
    }
}

/// The requests of one statement, with those who wait for each.
pub(crate) struct Batch<O: Operation> {
    pub(crate) requests: Vec<O>,
    pub(crate) callers: Vec<Callers<O::Output>>,
    outbox: Option<Outbox>,
}

impl<O: Queued> Batch<O> {
    fn with_capacity(many: usize) -> Self {
        Self {
            requests: Vec::with_capacity(many),
            callers: Vec::with_capacity(many),
            outbox: None,
        }
    }

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
    pub(crate) fn answer<I>(&self, many: usize, answers: I)
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
        let mut query = Query::new(&self.requests);
        connection.run_query(&mut query).await?;
        let answers = query.into_answers();
        self.requests.clear();
        for (callers, answer) in self.callers.drain(..).zip(answers) {
            callers
                .first()
                .send_repeated(Ok(answer), connection.repeated);
        }
        Ok(())
    }
}

#[cfg(test)]
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
