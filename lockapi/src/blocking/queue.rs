//! [`Queue`](crate::Queue) for blocking callers.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::block_on;
use crate::driver::{Library, Transaction};
use crate::error::Result;
use crate::queue::{
    Claim, CurrentLimit, DeadLetter, DeliveryState, Drained, Exchange, Groups, Job, JobKind,
    JobLimit, JobResult, Outcome, Pause, Pushed, QueueOptions, ResultValue, Settled, Statistics,
    Taken, Ticket, Unhandled,
};

/// A [queue](crate::Queue) for blocking callers.
#[derive(Clone, Debug)]
pub struct Queue(Arc<dyn crate::Queue>);

impl From<Arc<dyn crate::Queue>> for Queue {
    fn from(queue: Arc<dyn crate::Queue>) -> Self {
        Self(queue)
    }
}

impl Queue {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// The namespace that it is in.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.0.namespace()
    }

    /// How this handle uses it.
    #[must_use]
    pub fn options(&self) -> &QueueOptions {
        self.0.options()
    }

    /// The async queue that it wraps.
    #[must_use]
    pub fn inner(&self) -> &Arc<dyn crate::Queue> {
        &self.0
    }

    /// Pushes a job.
    ///
    /// # Errors
    /// As for [`Queue::push`](crate::Queue#method.push).
    pub fn push(&self, job: Job) -> Result<Pushed> {
        block_on(self.0.push(job))
    }

    /// Pushes a job of a [kind](JobKind).
    ///
    /// # Errors
    /// As for [`Queue::push_kind`](crate::Queue#method.push_kind).
    pub fn push_kind<K: JobKind + Sync>(&self, job: &K) -> Result<Pushed> {
        block_on(self.0.push_kind(job))
    }

    /// Pushes jobs, all of them or none.
    ///
    /// # Errors
    /// As for [`Queue::push_all`](crate::Queue::push_all).
    pub fn push_all(&self, jobs: Vec<Job>) -> Result<Vec<Pushed>> {
        block_on(self.0.push_all(jobs))
    }

    /// Claims jobs; none when there are none within the claim's waiting time.
    ///
    /// # Errors
    /// As for [`Queue::claim`](crate::Queue#method.claim).
    pub fn claim(&self, claim: &Claim) -> Result<Vec<Delivery>> {
        let deliveries = block_on(self.0.claim(claim))?;
        Ok(deliveries.into_iter().map(Delivery).collect())
    }

    /// Completes deliveries and claims jobs; see [`Queue::exchange`](crate::Queue::exchange).
    ///
    /// # Errors
    /// As for the async method.
    pub fn exchange(&self, acks: Vec<Ticket>, claim: Option<&Claim>) -> Result<Exchange> {
        block_on(self.0.exchange(acks, claim))
    }

    /// Returns when there may be something to claim; see [`Queue::arrival`](crate::Queue::arrival).
    pub fn arrival(&self, seen: u64, at_most: Duration) {
        block_on(self.0.arrival(seen, at_most));
    }

    /// Decides what becomes of a delivery; see [`Queue::settle`](crate::Queue::settle).
    ///
    /// # Errors
    /// As for the async method.
    pub fn settle(&self, ticket: Ticket, outcome: Outcome) -> Result<Settled> {
        block_on(self.0.settle(ticket, outcome))
    }

    /// Reports whether a delivery is still the latest of its job; see
    /// [`Queue::delivery_state`](crate::Queue::delivery_state).
    ///
    /// # Errors
    /// As for the async method.
    pub fn delivery_state(&self, ticket: Ticket) -> Result<DeliveryState> {
        block_on(self.0.delivery_state(ticket))
    }

    /// Marks the start of work on a delivery; see [`Queue::begin`](crate::Queue::begin).
    #[must_use]
    pub fn begin(&self, ticket: Ticket) -> bool {
        self.0.begin(ticket)
    }

    /// Reports how far the work on a delivery is; it does not block. See
    /// [`Queue::report_progress`](crate::Queue::report_progress).
    ///
    /// # Errors
    /// As for the async method.
    pub fn report_progress(&self, ticket: Ticket, fraction: f64, note: &str) -> Result<()> {
        self.0.report_progress(ticket, fraction, note)
    }

    /// Looks up what became of a job, and its result.
    ///
    /// # Errors
    /// As for [`Queue::result`](crate::Queue#method.result).
    pub fn result<T: DeserializeOwned>(&self, id: i64) -> Result<JobResult<T>> {
        block_on(self.0.result(id))
    }

    /// Waits until a job has ended, for this time at most, and answers what became of it; see
    /// [`Queue::wait_result`](crate::Queue#method.wait_result).
    ///
    /// # Errors
    /// As for the async method.
    pub fn wait_result<T: DeserializeOwned>(
        &self,
        id: i64,
        at_most: Duration,
    ) -> Result<JobResult<T>> {
        block_on(self.0.wait_result(id, at_most))
    }

    /// Looks up what became of a job; see [`Queue::read_result`](crate::Queue::read_result).
    ///
    /// # Errors
    /// As for the async method.
    pub fn read_result(&self, id: i64) -> Result<JobResult<ResultValue>> {
        block_on(self.0.read_result(id))
    }

    /// Waits until a job has ended; see [`Queue::await_result`](crate::Queue::await_result).
    ///
    /// # Errors
    /// As for the async method.
    pub fn await_result(&self, id: i64, at_most: Duration) -> Result<JobResult<ResultValue>> {
        block_on(self.0.await_result(id, at_most))
    }

    /// Returns after this time; see [`Queue::sleep`](crate::Queue::sleep).
    pub fn sleep(&self, time: Duration) {
        block_on(self.0.sleep(time));
    }

    /// Reads that clock; see [`Queue::now`](crate::Queue::now).
    #[must_use]
    pub fn now(&self) -> Duration {
        self.0.now()
    }

    /// Stops delivering jobs, until it is resumed.
    ///
    /// # Errors
    /// As for [`Queue::pause`](crate::Queue#method.pause).
    pub fn pause(&self) -> Result<()> {
        block_on(self.0.pause())
    }

    /// Stops delivering jobs for a time.
    ///
    /// # Errors
    /// As for [`Queue::pause_for`](crate::Queue#method.pause_for).
    pub fn pause_for(&self, time: Duration) -> Result<()> {
        block_on(self.0.pause_for(time))
    }

    /// Delivers jobs again.
    ///
    /// # Errors
    /// As for [`Queue::resume`](crate::Queue#method.resume).
    pub fn resume(&self) -> Result<()> {
        block_on(self.0.resume())
    }

    /// Stops giving out jobs of one name, until they are resumed or for a time; see
    /// [`Queue::set_name_paused`](crate::Queue::set_name_paused).
    ///
    /// # Errors
    /// As for the async method.
    pub fn pause_name(&self, name: &str, pause: Pause) -> Result<()> {
        block_on(self.0.pause_name(name, pause))
    }

    /// Gives out jobs of one name again.
    ///
    /// # Errors
    /// As for [`Queue::resume_name`](crate::Queue#method.resume_name).
    pub fn resume_name(&self, name: &str) -> Result<()> {
        block_on(self.0.resume_name(name))
    }

    /// Pauses it, and waits until no job of it runs; see [`Queue::drain`](crate::Queue::drain).
    ///
    /// # Errors
    /// As for the async method.
    pub fn drain(&self, pause: Pause, timeout: Duration) -> Result<Drained> {
        block_on(self.0.drain(pause, timeout))
    }

    /// Limits how many jobs run at once, and how often one is claimed; see [`Queue::set_limit`](crate::Queue::set_limit).
    ///
    /// # Errors
    /// As for the async method.
    pub fn set_limit(&self, limit: JobLimit) -> Result<()> {
        block_on(self.0.set_limit(limit))
    }

    /// Takes the limit of the queue away; see [`Queue::clear_limit`](crate::Queue::clear_limit).
    ///
    /// # Errors
    /// As for the async method.
    pub fn clear_limit(&self) -> Result<()> {
        block_on(self.0.clear_limit())
    }

    /// Reads the limit of the queue; see [`Queue::limit`](crate::Queue::limit).
    ///
    /// # Errors
    /// As for the async method.
    pub fn limit(&self) -> Result<Option<CurrentLimit>> {
        block_on(self.0.limit())
    }

    /// Sets how the groups of the queue are limited; see [`Queue::set_groups`](crate::Queue::set_groups).
    ///
    /// # Errors
    /// As for the async method.
    pub fn set_groups(&self, groups: Groups) -> Result<()> {
        block_on(self.0.set_groups(groups))
    }

    /// Gives one group a limit of its own; see
    /// [`Queue::set_group_limit`](crate::Queue::set_group_limit).
    ///
    /// # Errors
    /// As for the async method.
    pub fn set_group_limit(&self, group: &str, limit: Option<JobLimit>) -> Result<()> {
        block_on(self.0.set_group_limit(group, limit))
    }

    /// Cancels jobs; see [`Queue::cancel`](crate::Queue::cancel).
    ///
    /// # Errors
    /// As for the async method.
    pub fn cancel(&self, ids: Vec<i64>) -> Result<Vec<i64>> {
        block_on(self.0.cancel(ids))
    }

    /// Deletes all jobs that wait, and returns how many.
    ///
    /// # Errors
    /// As for [`Queue::purge`](crate::Queue::purge).
    pub fn purge(&self) -> Result<u64> {
        block_on(self.0.purge())
    }

    /// Counts its jobs.
    ///
    /// # Errors
    /// As for [`Queue::statistics`](crate::Queue::statistics).
    pub fn statistics(&self) -> Result<Statistics> {
        block_on(self.0.statistics())
    }

    /// Lists the jobs that wait and have none of these names; see
    /// [`Queue::unhandled`](crate::Queue::unhandled).
    ///
    /// # Errors
    /// As for the async method.
    pub fn unhandled(&self, names: Vec<String>) -> Result<Vec<Unhandled>> {
        block_on(self.0.unhandled(names))
    }

    /// Reads dead letters; see [`Queue::dead_letters`](crate::Queue::dead_letters).
    ///
    /// # Errors
    /// As for the async method.
    pub fn dead_letters(&self, after: i64, most: usize) -> Result<Vec<DeadLetter>> {
        block_on(self.0.dead_letters(after, most))
    }

    /// Puts dead letters back; see [`Queue::redrive`](crate::Queue::redrive).
    ///
    /// # Errors
    /// As for the async method.
    pub fn redrive(&self, ids: Vec<i64>) -> Result<u64> {
        block_on(self.0.redrive(ids))
    }

    /// Deletes dead letters; see [`Queue::discard`](crate::Queue::discard).
    ///
    /// # Errors
    /// As for the async method.
    pub fn discard(&self, ids: Vec<i64>) -> Result<u64> {
        block_on(self.0.discard(ids))
    }

    /// Decides what becomes of a delivery, in the background; it does not block. See
    /// [`Queue::settle_later`](crate::Queue::settle_later).
    pub fn settle_later(&self, ticket: Ticket, outcome: Outcome) {
        self.0.settle_later(ticket, outcome);
    }

    /// Pushes jobs in a transaction of the caller; see
    /// [`Queue::push_in`](../queue/trait.Queue.html#method.push_in).
    ///
    /// # Errors
    /// As for the async method.
    pub fn push_in<'c, L: Library, C: Transaction<L> + ?Sized>(
        &'c self,
        connection: &'c mut C,
        jobs: &'c [Job],
    ) -> L::Outcome<'c, Result<Vec<Pushed>>> {
        self.0.push_in(connection, jobs)
    }

    /// Takes jobs in a transaction of the caller; see
    /// [`Queue::take_in`](../queue/trait.Queue.html#method.take_in).
    ///
    /// # Errors
    /// As for the async method.
    pub fn take_in<'c, L: Library, C: Transaction<L> + ?Sized>(
        &'c self,
        connection: &'c mut C,
        most: usize,
    ) -> L::Outcome<'c, Result<Vec<Taken>>> {
        self.0.take_in(connection, most)
    }
}

/// One delivery of one job, to be acknowledged; see [`queue::Delivery`](crate::queue::Delivery), to
/// which it dereferences for reading.
#[derive(Debug)]
#[must_use = "a delivery that is dropped gives its job back"]
pub struct Delivery(crate::queue::Delivery);

impl From<crate::queue::Delivery> for Delivery {
    fn from(delivery: crate::queue::Delivery) -> Self {
        Self(delivery)
    }
}

impl Deref for Delivery {
    type Target = crate::queue::Delivery;

    fn deref(&self) -> &crate::queue::Delivery {
        &self.0
    }
}

impl Delivery {
    /// Returns once it is lost.
    pub fn lost(&self) {
        block_on(self.0.lost());
    }

    /// Completes the job.
    ///
    /// # Errors
    /// As for [`Delivery::ack`](crate::queue::Delivery::ack).
    pub fn ack(self) -> Result<()> {
        block_on(self.0.ack())
    }

    /// Fails it; see [`Delivery::nack`](crate::queue::Delivery::nack).
    ///
    /// # Errors
    /// As for the async method.
    pub fn nack(self, error: impl fmt::Display + Send, after: Duration) -> Result<bool> {
        block_on(self.0.nack(error, after))
    }

    /// Fails it for good, without another attempt.
    ///
    /// # Errors
    /// As for [`Delivery::reject`](crate::queue::Delivery::reject).
    pub fn reject(self, error: impl fmt::Display + Send) -> Result<()> {
        block_on(self.0.reject(error))
    }

    /// Postpones it; see [`Delivery::snooze`](crate::queue::Delivery::snooze).
    ///
    /// # Errors
    /// As for the async method.
    pub fn snooze(self, time: Duration) -> Result<()> {
        block_on(self.0.snooze(time))
    }

    /// Releases it.
    ///
    /// # Errors
    /// As for [`Delivery::release`](crate::queue::Delivery::release).
    pub fn release(self) -> Result<()> {
        block_on(self.0.release())
    }

    /// Extends its lease to `lease` from now.
    ///
    /// # Errors
    /// As for [`Delivery::extend`](crate::queue::Delivery::extend).
    pub fn extend(&self, lease: Duration) -> Result<()> {
        block_on(self.0.extend(lease))
    }
}
