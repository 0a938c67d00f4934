//! Queues, called through generics.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockapi::Result;
use lockapi::queue::{
    Attempted, Claim, CurrentLimit, DeadLetter, Delivery, DeliveryState, Drained, Exchange, Groups,
    Job, JobLimit, JobResult, Outcome, Pause, Pushed, Queue, QueueOptions, ResultValue, Settled,
    Statistics, Ticket, Unhandled,
};

use super::Through;

#[async_trait]
impl<Q: Queue + ?Sized + 'static> Queue for Through<Q> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn namespace(&self) -> &str {
        self.0.namespace()
    }

    fn options(&self) -> &QueueOptions {
        self.0.options()
    }

    async fn push_all(&self, jobs: Vec<Job>) -> Result<Vec<Pushed>> {
        self.0.push_all(jobs).await
    }

    fn used(&self) {
        self.0.used();
    }

    fn missed(&self) {
        self.0.missed();
    }

    async fn exchange(&self, acks: Vec<Ticket>, claim: Option<&Claim>) -> Result<Exchange> {
        let mut exchange = self.0.exchange(acks, claim).await?;
        let queue: Arc<dyn Queue> = Arc::new(Through(Arc::clone(&self.0)));
        exchange.deliveries = exchange
            .deliveries
            .into_iter()
            .map(|delivery| delivery.through(Arc::clone(&queue)))
            .collect();
        Ok(exchange)
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
        self.0.delivery_state(ticket).await
    }

    fn begin(&self, ticket: Ticket) -> bool {
        self.0.begin(ticket)
    }

    fn report_progress(&self, ticket: Ticket, fraction: f64, note: &str) -> Result<()> {
        self.0.report_progress(ticket, fraction, note)
    }

    fn attempted(&self, job: &Delivery, how: Attempted) {
        self.0.attempted(job, how);
    }

    async fn read_result(&self, id: i64) -> Result<JobResult<ResultValue>> {
        self.0.read_result(id).await
    }

    async fn await_result(&self, id: i64, at_most: Duration) -> Result<JobResult<ResultValue>> {
        self.0.await_result(id, at_most).await
    }

    async fn sleep(&self, time: Duration) {
        self.0.sleep(time).await;
    }

    fn now(&self) -> Duration {
        self.0.now()
    }

    async fn set_paused(&self, pause: Option<Pause>) -> Result<()> {
        self.0.set_paused(pause).await
    }

    async fn set_name_paused(&self, name: &str, pause: Option<Pause>) -> Result<()> {
        self.0.set_name_paused(name, pause).await
    }

    async fn drain(&self, pause: Pause, timeout: Duration) -> Result<Drained> {
        self.0.drain(pause, timeout).await
    }

    async fn set_limit(&self, limit: JobLimit) -> Result<()> {
        self.0.set_limit(limit).await
    }

    async fn clear_limit(&self) -> Result<()> {
        self.0.clear_limit().await
    }

    async fn limit(&self) -> Result<Option<CurrentLimit>> {
        self.0.limit().await
    }

    async fn set_groups(&self, groups: Groups) -> Result<()> {
        self.0.set_groups(groups).await
    }

    async fn set_group_limit(&self, group: &str, limit: Option<JobLimit>) -> Result<()> {
        self.0.set_group_limit(group, limit).await
    }

    async fn cancel(&self, ids: Vec<i64>) -> Result<Vec<i64>> {
        self.0.cancel(ids).await
    }

    async fn purge(&self) -> Result<u64> {
        self.0.purge().await
    }

    async fn statistics(&self) -> Result<Statistics> {
        self.0.statistics().await
    }

    async fn unhandled(&self, names: Vec<String>) -> Result<Vec<Unhandled>> {
        self.0.unhandled(names).await
    }

    async fn dead_letters(&self, after: i64, most: usize) -> Result<Vec<DeadLetter>> {
        self.0.dead_letters(after, most).await
    }

    async fn redrive(&self, ids: Vec<i64>) -> Result<u64> {
        self.0.redrive(ids).await
    }

    async fn discard(&self, ids: Vec<i64>) -> Result<u64> {
        self.0.discard(ids).await
    }
}
