//! [`Queue`] over the queues of a process.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;

use super::topic::Topic;
use super::{history, progress, results};
use crate::engine::Core;
use crate::engine::batcher::Queued;
use crate::engine::notifier::Subscription;
use crate::error::{Error, ErrorKind, LOCKED, Result};
use crate::lease::micros;
use crate::queue::{
    Attempted, Cancel, Claim, CountJobs, CurrentLimit, DeadLetter, Delivery, DeliveryState,
    Discard, Drained, Exchange, Groups, Job, JobLimit, JobResult, Name, Outcome, Pause, Purge,
    Pushed, Queue, QueueOptions, ReadDeadLetters, ReadDeliveryState, ReadUnhandled, Redrive,
    ResultValue, SetGroupLimit, SetGroups, Settled, Statistics, SweepQueues, Ticket, Unhandled,
    checked_limit, checked_report, in_transaction,
};
use crate::sweep::SweepResult;
use crate::telemetry;
use crate::wait::unless;

/// How many rows a statement goes through that works on a queue as a whole.
const PART: i64 = 1000;
/// How many jobs are cancelled in one statement, for which claims and completions wait.
const CANCELLED: usize = 1000;
/// How many numbers of dead letters are in one statement.
const MAX_IDS: usize = 10_000;
/// How many numbers an error names.
const NAMED: usize = 10;
/// How many jobs of a priority and state are counted at most.
const COUNTED: i64 = 5_000;
/// The most dead letters in one answer.
const MAX_LETTERS: usize = 1000;
/// How often, and after which pause, something is asked again that another transaction was in the
/// way of.
pub(super) const TRIES: usize = 50;
pub(super) const PAUSE: Duration = Duration::from_millis(20);

pub(in crate::engine) fn open(
    core: &Arc<Core>,
    queue: String,
    options: QueueOptions,
) -> Arc<dyn Queue> {
    let number = in_transaction::topic(&core.namespace, &queue);
    let limit_number = in_transaction::limit_topic(&core.namespace, &queue);
    let topic = core.queues.topic(number);
    let retentions = &core.queues.retentions;
    retentions.opened(number, &queue, options.keep_dead(), &topic);
    Arc::new(QueueHandle(Arc::new(Handle {
        name: Name {
            namespace: core.namespace.to_string(),
            queue,
        },
        options,
        number,
        limit_number,
        topic,
        subscription: OnceLock::new(),
        core: Arc::clone(core),
    })))
}

pub(super) struct Handle {
    pub(super) name: Name,
    pub(super) options: QueueOptions,
    pub(super) number: i64,
    /// Notified when the limit is set.
    pub(super) limit_number: i64,
    pub(super) topic: Arc<Topic>,
    /// Made by the first claim: a handle that only pushes does not listen.
    subscription: OnceLock<[Subscription; 2]>,
    pub(super) core: Arc<Core>,
}

pub(super) struct QueueHandle(pub(super) Arc<Handle>);

impl Handle {
    pub(super) fn failed(&self, operation: &'static str) -> impl Fn(Error) -> Error {
        move |error| error.during(operation).on(&self.name.queue)
    }

    fn invalid(&self, operation: &'static str, message: String) -> Error {
        Error::new(ErrorKind::Invalid, operation, message).on(&self.name.queue)
    }

    pub(super) async fn call<O: Queued>(&self, request: O) -> Result<O::Output> {
        let answer = self.core.queues.batcher.call(request).await;
        answer.map_err(|error| error.on(&self.name.queue))
    }

    /// Sends a request that takes long.
    pub(super) async fn call_in_bulk<O: Queued>(&self, request: O) -> Result<O::Output> {
        let answer = self.core.sweeps.batcher().call(request).await;
        answer.map_err(|error| error.on(&self.name.queue))
    }

    /// Deletes in parts until one of them is not full. `after` is the place of a part.
    async fn in_parts<O, K>(
        &self,
        mut part: O,
        after: fn(&mut O) -> &mut K,
        total: &mut u64,
    ) -> Result<()>
    where
        O: Queued<Output = SweepResult<K>> + Clone,
    {
        loop {
            let done = self.call_in_bulk(part.clone()).await;
            let done = done.map_err(|error| match *total {
                0 => error,
                total => error.noting(format_args!("{total} were deleted before")),
            })?;
            *total += done.deleted.max(0).unsigned_abs();
            match done.last {
                Some(last) => *after(&mut part) = last,
                None => return Ok(()),
            }
        }
    }

    /// Cancels jobs in parts. Those that are being claimed, or that a transaction has completed and not ended
    /// yet, are tried again after the others.
    async fn cancel(&self, mut ids: Vec<i64>) -> Result<Vec<i64>> {
        let timer = &self.core.connections.timer;
        let mut cancelled = Vec::new();
        let mut until = None;
        loop {
            let mut locked = Vec::new();
            for part in ids.chunks(CANCELLED) {
                let part = self.cancel_part(part.to_vec(), &mut cancelled).await?;
                locked.extend(part);
            }
            if locked.is_empty() {
                cancelled.sort_unstable();
                return Ok(cancelled);
            }
            ids = locked;
            let now = timer.now();
            if now >= *until.get_or_insert(now + self.core.connections.timeout) {
                let named = &ids[..ids.len().min(NAMED)];
                let more = match ids.len() - named.len() {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                let message = format!(
                    "jobs {named:?}{more} are {LOCKED}; {} others were cancelled",
                    cancelled.len()
                );
                return Err(Error::new(ErrorKind::TimedOut, "cancel", message).on(&self.name.queue));
            }
            timer.sleep(PAUSE).await;
        }
    }

    /// Cancels jobs in one statement; answers which are locked.
    async fn cancel_part(&self, ids: Vec<i64>, cancelled: &mut Vec<i64>) -> Result<Vec<i64>> {
        let cancel = Cancel {
            name: self.name.clone(),
            ids,
            keep: micros(self.options.keep),
        };
        match self.call(cancel).await {
            Ok(part) => {
                cancelled.extend(part.cancelled);
                Ok(part.locked)
            }
            Err(error) if cancelled.is_empty() => Err(error),
            Err(error) => {
                let many = cancelled.len();
                Err(error.noting(format_args!("{many} others were cancelled before")))
            }
        }
    }

    /// Puts dead letters back, and adds to `total` how many. Those whose tasks are being fired are tried again after the
    /// others, so that none of these is put back twice that has failed again.
    async fn redrive(&self, ids: &[i64], total: &mut u64) -> Result<()> {
        let mut busy = self.redrive_parts(ids, total).await?;
        let mut tries = TRIES;
        while !busy.is_empty() {
            if tries == 0 {
                let message = format!(
                    "the tasks of {} runs are {LOCKED}; {total} dead letters were put back",
                    busy.len()
                );
                return Err(
                    Error::new(ErrorKind::TimedOut, "redrive", message).on(&self.name.queue)
                );
            }
            tries -= 1;
            self.core.connections.timer.sleep(PAUSE).await;
            busy = self.redrive_parts(&busy, total).await?;
        }
        Ok(())
    }

    /// Goes through them once; answers whose tasks are being fired.
    async fn redrive_parts(&self, ids: &[i64], total: &mut u64) -> Result<Vec<i64>> {
        let (mut busy, mut after) = (Vec::new(), 0);
        loop {
            let part = Redrive {
                name: self.name.clone(),
                ids: ids.to_vec(),
                after,
                most: PART,
                topic: self.number,
            };
            let part = self.call_in_bulk(part).await;
            let part = part.map_err(|error| match *total {
                0 => error,
                total => error.noting(format_args!("{total} dead letters were put back before")),
            })?;
            *total += part.count.max(0).unsigned_abs();
            busy.extend(part.busy);
            match part.last {
                Some(last) => after = last,
                None => return Ok(busy),
            }
        }
    }

    /// Subscribes to pushes by other processes.
    pub(super) fn listen(&self) {
        self.subscription.get_or_init(|| {
            let topic = Arc::downgrade(&self.topic);
            let timer = self.core.connections.timer.clone();
            let pushed = self.core.notifier.subscribe(self.number, move || {
                if let Some(topic) = topic.upgrade() {
                    topic.notified(&timer);
                }
            });
            let topic = Arc::downgrade(&self.topic);
            let limited = self.core.notifier.subscribe(self.limit_number, move || {
                if let Some(topic) = topic.upgrade() {
                    topic.room_left();
                }
            });
            [pushed, limited]
        });
    }

    pub(super) fn sweep_later(&self) {
        // One for all queues of the namespace.
        let namespace = Arc::clone(&self.core.namespace);
        self.core.sweeps.later(0, move || SweepQueues {
            namespace: namespace.to_string(),
            from: (0, 0),
            most: PART,
        });
        // And for all namespaces: numbers of jobs are those of the database.
        self.core.sweeps.later(0, progress::first_part);
        self.core.sweeps.later(0, results::first_part);
        if self.core.queues.history.is_some() {
            self.core.sweeps.later(0, history::first_fold);
            self.core.sweeps.later(0, history::first_sweep);
        }
        self.expire_later();
    }
}

#[async_trait]
impl Queue for QueueHandle {
    fn name(&self) -> &str {
        &self.0.name.queue
    }

    fn namespace(&self) -> &str {
        &self.0.name.namespace
    }

    fn options(&self) -> &QueueOptions {
        &self.0.options
    }

    async fn push_all(&self, jobs: Vec<Job>) -> Result<Vec<Pushed>> {
        let handle = &self.0;
        let jobs = in_transaction::check(self, &jobs).map_err(handle.failed("push"))?;
        handle.push_all(&jobs).await
    }

    fn used(&self) {
        self.0.sweep_later();
    }

    fn missed(&self) {
        self.0.admit_now_and_then();
    }

    async fn exchange(&self, acks: Vec<Ticket>, claim: Option<&Claim>) -> Result<Exchange> {
        self.0.exchange(acks, claim).await
    }

    async fn arrival(&self, seen: u64, at_most: Duration) {
        unless(self.sleep(at_most), self.0.topic.arrival(seen)).await;
    }

    async fn settle(&self, ticket: Ticket, outcome: Outcome) -> Result<Settled> {
        let checked = outcome.check();
        checked.map_err(|error| error.on(&self.0.name.queue))?;
        self.0.settle(ticket, &outcome).await
    }

    fn settle_later(&self, ticket: Ticket, outcome: Outcome) {
        self.0.settle_later(ticket, &outcome);
    }

    async fn delivery_state(&self, ticket: Ticket) -> Result<DeliveryState> {
        let state = self.0.call(ReadDeliveryState { ticket }).await?;
        if state != DeliveryState::Current {
            self.0.place_left();
            self.0.topic.room_left();
        }
        Ok(state)
    }

    fn begin(&self, ticket: Ticket) -> bool {
        self.0.core.queues.heartbeats.begin(ticket)
    }

    fn report_progress(&self, ticket: Ticket, fraction: f64, note: &str) -> Result<()> {
        let report = checked_report(ticket, fraction, note).map_err(self.0.failed("progress"))?;
        self.0.core.queues.reports.report(report);
        Ok(())
    }

    fn attempted(&self, job: &Delivery, how: Attempted) {
        if let Some(history) = &self.0.core.queues.history {
            history.count(self.0.number, &self.0.name.queue, job, how);
        }
    }

    async fn read_result(&self, id: i64) -> Result<JobResult<ResultValue>> {
        self.0.read_result(id).await
    }

    async fn await_result(&self, id: i64, at_most: Duration) -> Result<JobResult<ResultValue>> {
        self.0.await_result(id, at_most).await
    }

    async fn sleep(&self, time: Duration) {
        self.0.core.connections.timer.sleep(time).await;
    }

    fn now(&self) -> Duration {
        self.0.core.connections.timer.now()
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
        self.0.set_limit(Some(limit)).await
    }

    async fn clear_limit(&self) -> Result<()> {
        self.0.set_limit(None).await
    }

    async fn limit(&self) -> Result<Option<CurrentLimit>> {
        self.0.limit().await
    }

    async fn set_groups(&self, groups: Groups) -> Result<()> {
        let set = SetGroups {
            name: self.0.name.clone(),
            limit: groups.row().map_err(self.0.failed("set_groups"))?,
            ordered: groups.is_ordered(),
            topic: self.0.number,
        };
        self.0.call(set).await?;
        self.0.topic.bump();
        Ok(())
    }

    async fn set_group_limit(&self, group: &str, limit: Option<JobLimit>) -> Result<()> {
        let limit = checked_limit(group, limit).map_err(self.0.failed("set_group_limit"))?;
        let set = SetGroupLimit {
            name: self.0.name.clone(),
            group: group.to_owned(),
            limit,
            topic: self.0.number,
        };
        self.0.call(set).await?;
        self.0.topic.bump();
        Ok(())
    }

    async fn cancel(&self, ids: Vec<i64>) -> Result<Vec<i64>> {
        self.0.cancel(ids).await
    }

    async fn purge(&self) -> Result<u64> {
        let first = Purge {
            name: self.0.name.clone(),
            after: Purge::FIRST,
            most: PART,
        };
        let mut total = 0;
        let purged = self.0.in_parts(first, |part| &mut part.after, &mut total);
        purged.await.map(|()| total)
    }

    async fn statistics(&self) -> Result<Statistics> {
        let count = CountJobs {
            name: self.0.name.clone(),
            most: COUNTED,
        };
        let counts = self.0.call_in_bulk(count).await.map(Statistics::from)?;
        telemetry::counted(&self.0.name.queue, &counts);
        Ok(counts)
    }

    async fn unhandled(&self, names: Vec<String>) -> Result<Vec<Unhandled>> {
        let read = ReadUnhandled {
            name: self.0.name.clone(),
            names,
            most: PART,
        };
        let found = self.0.call_in_bulk(read).await?;
        Ok(found.into_iter().map(Unhandled::from).collect())
    }

    async fn dead_letters(&self, after: i64, most: usize) -> Result<Vec<DeadLetter>> {
        if most > MAX_LETTERS {
            let message =
                format!("{most} dead letters in one call; allowed are at most {MAX_LETTERS}");
            return Err(self.0.invalid("dead_letters", message));
        }
        let read = ReadDeadLetters {
            name: self.0.name.clone(),
            after,
            most: i64::try_from(most).unwrap_or(i64::MAX),
        };
        let rows = self.0.call_in_bulk(read).await?;
        Ok(rows.into_iter().map(DeadLetter::from).collect())
    }

    async fn redrive(&self, ids: Vec<i64>) -> Result<u64> {
        let mut total = 0;
        let mut outcome = Ok(());
        for ids in lists(&ids) {
            outcome = self.0.redrive(ids, &mut total).await;
            if outcome.is_err() {
                break;
            }
        }
        self.0.topic.bump();
        outcome.map(|()| total)
    }

    async fn discard(&self, ids: Vec<i64>) -> Result<u64> {
        let mut total = 0;
        for ids in lists(&ids) {
            let first = Discard {
                name: self.0.name.clone(),
                ids: ids.to_vec(),
                after: 0,
                most: PART,
            };
            let discarded = self.0.in_parts(first, |part| &mut part.after, &mut total);
            discarded.await?;
        }
        Ok(total)
    }
}

/// Numbers of dead letters in lists of bounded length; an empty list, which means all, stays one.
fn lists(ids: &[i64]) -> impl Iterator<Item = &[i64]> {
    let all = ids.is_empty().then_some(ids);
    all.into_iter().chain(ids.chunks(MAX_IDS))
}

impl fmt::Debug for QueueHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Queue").field(&self.0.name.queue).finish()
    }
}
