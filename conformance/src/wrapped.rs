//! A queue that passes calls on to another, with something of a test between them.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockapi::queue::{
    Attempted, Claim, CurrentLimit, DeadLetter, Delivery, DeliveryState, Drained, Exchange, Groups,
    Job, JobLimit, JobResult, Outcome, Pause, Pushed, QueueOptions, ResultValue, Settled,
    Statistics, Ticket, Unhandled,
};
use lockapi::{Queue, Result};

/// What happens to the calls of a worker; by default they are passed on.
#[async_trait]
pub trait Wrapper: std::fmt::Debug + Send + Sync + 'static {
    /// The queue that the calls are passed on to.
    fn inner(&self) -> &Arc<dyn Queue>;

    /// [`Queue::exchange`].
    async fn exchange(&self, acks: Vec<Ticket>, claim: Option<&Claim>) -> Result<Exchange> {
        self.inner().exchange(acks, claim).await
    }

    /// [`Queue::arrival`].
    async fn arrival(&self, seen: u64, at_most: Duration) {
        self.inner().arrival(seen, at_most).await;
    }

    /// [`Queue::settle`].
    async fn settle(&self, ticket: Ticket, outcome: Outcome) -> Result<Settled> {
        self.inner().settle(ticket, outcome).await
    }

    /// [`Queue::settle_later`].
    fn settle_later(&self, ticket: Ticket, outcome: Outcome) {
        self.inner().settle_later(ticket, outcome);
    }

    /// [`Queue::begin`].
    fn begin(&self, ticket: Ticket) -> bool {
        self.inner().begin(ticket)
    }
}

/// A queue whose calls go through a [`Wrapper`].
#[derive(Debug)]
pub struct Wrapped<W>(pub W);

impl<W> Deref for Wrapped<W> {
    type Target = W;

    fn deref(&self) -> &W {
        &self.0
    }
}

#[async_trait]
impl<W: Wrapper> Queue for Wrapped<W> {
    fn name(&self) -> &str {
        self.0.inner().name()
    }

    fn namespace(&self) -> &str {
        self.0.inner().namespace()
    }

    fn options(&self) -> &QueueOptions {
        self.0.inner().options()
    }

    async fn push_all(&self, jobs: Vec<Job>) -> Result<Vec<Pushed>> {
        self.0.inner().push_all(jobs).await
    }

    fn used(&self) {
        self.0.inner().used();
    }

    fn missed(&self) {
        self.0.inner().missed();
    }

    async fn exchange(&self, acks: Vec<Ticket>, claim: Option<&Claim>) -> Result<Exchange> {
        self.0.exchange(acks, claim).await
    }

    async fn arrival(&self, seen: u64, at_most: Duration) {
        self.0.arrival(seen, at_most).await;
    }

    async fn settle(&self, ticket: Ticket, outcome: Outcome) -> Result<Settled> {
        self.0.settle(ticket, outcome).await
    }

    fn settle_later(&self, ticket: Ticket, outcome: Outcome) {
        self.0.settle_later(ticket, outcome);
    }

    async fn delivery_state(&self, ticket: Ticket) -> Result<DeliveryState> {
        self.0.inner().delivery_state(ticket).await
    }

    fn begin(&self, ticket: Ticket) -> bool {
        self.0.begin(ticket)
    }

    fn report_progress(&self, ticket: Ticket, fraction: f64, note: &str) -> Result<()> {
        self.0.inner().report_progress(ticket, fraction, note)
    }

    fn attempted(&self, job: &Delivery, how: Attempted) {
        self.0.inner().attempted(job, how);
    }

    async fn read_result(&self, id: i64) -> Result<JobResult<ResultValue>> {
        self.0.inner().read_result(id).await
    }

    async fn await_result(&self, id: i64, at_most: Duration) -> Result<JobResult<ResultValue>> {
        self.0.inner().await_result(id, at_most).await
    }

    async fn sleep(&self, time: Duration) {
        self.0.inner().sleep(time).await;
    }

    fn now(&self) -> Duration {
        self.0.inner().now()
    }

    async fn set_paused(&self, pause: Option<Pause>) -> Result<()> {
        self.0.inner().set_paused(pause).await
    }

    async fn set_name_paused(&self, name: &str, pause: Option<Pause>) -> Result<()> {
        self.0.inner().set_name_paused(name, pause).await
    }

    async fn drain(&self, pause: Pause, timeout: Duration) -> Result<Drained> {
        self.0.inner().drain(pause, timeout).await
    }

    async fn set_limit(&self, limit: JobLimit) -> Result<()> {
        self.0.inner().set_limit(limit).await
    }

    async fn clear_limit(&self) -> Result<()> {
        self.0.inner().clear_limit().await
    }

    async fn limit(&self) -> Result<Option<CurrentLimit>> {
        self.0.inner().limit().await
    }

    async fn set_groups(&self, groups: Groups) -> Result<()> {
        self.0.inner().set_groups(groups).await
    }

    async fn set_group_limit(&self, group: &str, limit: Option<JobLimit>) -> Result<()> {
        self.0.inner().set_group_limit(group, limit).await
    }

    async fn cancel(&self, ids: Vec<i64>) -> Result<Vec<i64>> {
        self.0.inner().cancel(ids).await
    }

    async fn purge(&self) -> Result<u64> {
        self.0.inner().purge().await
    }

    async fn statistics(&self) -> Result<Statistics> {
        self.0.inner().statistics().await
    }

    async fn unhandled(&self, names: Vec<String>) -> Result<Vec<Unhandled>> {
        self.0.inner().unhandled(names).await
    }

    async fn dead_letters(&self, after: i64, most: usize) -> Result<Vec<DeadLetter>> {
        self.0.inner().dead_letters(after, most).await
    }

    async fn redrive(&self, ids: Vec<i64>) -> Result<u64> {
        self.0.inner().redrive(ids).await
    }

    async fn discard(&self, ids: Vec<i64>) -> Result<u64> {
        self.0.inner().discard(ids).await
    }
}
