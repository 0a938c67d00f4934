//! Queues of the blocking face.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockapi::queue::{
    Attempted, Claim, CurrentLimit, DeadLetter, Delivery, DeliveryState, Drained, Exchange, Groups,
    Job, JobLimit, JobResult, Outcome, Pause, Pushed, Queue, QueueOptions, ResultValue, Settled,
    Statistics, Ticket, Unhandled,
};
use lockapi::{Result, blocking};

use super::Blocking;

#[async_trait]
impl Queue for Blocking<blocking::Queue> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn namespace(&self) -> &str {
        self.0.namespace()
    }

    fn options(&self) -> &QueueOptions {
        self.0.inner().options()
    }

    async fn push_all(&self, jobs: Vec<Job>) -> Result<Vec<Pushed>> {
        self.with(move |queue| queue.push_all(jobs)).await
    }

    fn used(&self) {
        self.0.inner().used();
    }

    fn missed(&self) {
        self.0.inner().missed();
    }

    async fn exchange(&self, acks: Vec<Ticket>, claim: Option<&Claim>) -> Result<Exchange> {
        let claim = claim.cloned();
        let exchange = self.with(move |queue| queue.exchange(acks, claim.as_ref()));
        let mut exchange = exchange.await?;
        let queue: Arc<dyn Queue> = Arc::new(self.clone());
        exchange.deliveries = exchange
            .deliveries
            .into_iter()
            .map(|delivery| delivery.through(Arc::clone(&queue)))
            .collect();
        Ok(exchange)
    }

    async fn arrival(&self, seen: u64, at_most: Duration) {
        self.with(move |queue| queue.arrival(seen, at_most)).await;
    }

    async fn settle(&self, ticket: Ticket, outcome: Outcome) -> Result<Settled> {
        self.with(move |queue| queue.settle(ticket, outcome)).await
    }

    fn settle_later(&self, ticket: Ticket, outcome: Outcome) {
        self.0.inner().settle_later(ticket, outcome);
    }

    async fn delivery_state(&self, ticket: Ticket) -> Result<DeliveryState> {
        self.with(move |queue| queue.delivery_state(ticket)).await
    }

    fn begin(&self, ticket: Ticket) -> bool {
        self.0.begin(ticket)
    }

    fn report_progress(&self, ticket: Ticket, fraction: f64, note: &str) -> Result<()> {
        self.0.report_progress(ticket, fraction, note)
    }

    fn attempted(&self, job: &Delivery, how: Attempted) {
        self.0.inner().attempted(job, how);
    }

    async fn read_result(&self, id: i64) -> Result<JobResult<ResultValue>> {
        self.with(move |queue| queue.read_result(id)).await
    }

    async fn await_result(&self, id: i64, at_most: Duration) -> Result<JobResult<ResultValue>> {
        self.with(move |queue| queue.await_result(id, at_most))
            .await
    }

    async fn sleep(&self, time: Duration) {
        // A call that blocks would keep its thread when this is dropped.
        self.0.inner().sleep(time).await;
    }

    fn now(&self) -> Duration {
        self.0.now()
    }

    async fn set_paused(&self, pause: Option<Pause>) -> Result<()> {
        self.with(move |queue| match pause {
            Some(Pause::UntilResumed) => queue.pause(),
            Some(Pause::For(time)) => queue.pause_for(time),
            None => queue.resume(),
        })
        .await
    }

    async fn set_name_paused(&self, name: &str, pause: Option<Pause>) -> Result<()> {
        let name = name.to_owned();
        self.with(move |queue| match pause {
            Some(pause) => queue.pause_name(&name, pause),
            None => queue.resume_name(&name),
        })
        .await
    }

    async fn drain(&self, pause: Pause, timeout: Duration) -> Result<Drained> {
        self.with(move |queue| queue.drain(pause, timeout)).await
    }

    async fn set_limit(&self, limit: JobLimit) -> Result<()> {
        self.with(move |queue| queue.set_limit(limit)).await
    }

    async fn clear_limit(&self) -> Result<()> {
        self.with(move |queue| queue.clear_limit()).await
    }

    async fn limit(&self) -> Result<Option<CurrentLimit>> {
        self.with(move |queue| queue.limit()).await
    }

    async fn set_groups(&self, groups: Groups) -> Result<()> {
        self.with(move |queue| queue.set_groups(groups)).await
    }

    async fn set_group_limit(&self, group: &str, limit: Option<JobLimit>) -> Result<()> {
        let group = group.to_owned();
        self.with(move |queue| queue.set_group_limit(&group, limit))
            .await
    }

    async fn cancel(&self, ids: Vec<i64>) -> Result<Vec<i64>> {
        self.with(move |queue| queue.cancel(ids)).await
    }

    async fn purge(&self) -> Result<u64> {
        self.with(|queue| queue.purge()).await
    }

    async fn statistics(&self) -> Result<Statistics> {
        self.with(|queue| queue.statistics()).await
    }

    async fn unhandled(&self, names: Vec<String>) -> Result<Vec<Unhandled>> {
        self.with(move |queue| queue.unhandled(names)).await
    }

    async fn dead_letters(&self, after: i64, most: usize) -> Result<Vec<DeadLetter>> {
        self.with(move |queue| queue.dead_letters(after, most))
            .await
    }

    async fn redrive(&self, ids: Vec<i64>) -> Result<u64> {
        self.with(move |queue| queue.redrive(ids)).await
    }

    async fn discard(&self, ids: Vec<i64>) -> Result<u64> {
        self.with(move |queue| queue.discard(ids)).await
    }
}
