//! [`Queue`] over the queues of a process.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::Queues;
use super::kept::deadline;
use super::topic::Topic;
use crate::engine::Core;
use crate::engine::batcher::Queued;
use crate::engine::batcher::ended;
use crate::engine::notices::Subscription;
use crate::error::{Error, ErrorKind, Result};
use crate::hold::Hold;
use crate::lease::micros;
use crate::queue::{
    Ack, Cancel, Claim, Claimed, CountJobs, DeadLetter, Delivery, Discard, Exchange, Job,
    MAX_DELAY, Name, Outcome, Purge, Pushed, Queue, ReadDead, Redrive, SetPaused, Settle, Settled,
    Statistics, SweepQueue, Terms, Ticket, Turn, check_lease, in_transaction,
};
use crate::random;
use crate::seam::Connector;
use crate::telemetry;
use crate::wait::unless;

/// How many rows a statement goes through that works on a queue as a whole.
const PART: i64 = 1000;
/// How many jobs of a priority and state are counted at most.
const COUNTED: i64 = 10_000;
/// The most dead letters in one answer.
const MAX_LETTERS: usize = 1000;
/// How often, and after which pause, something is asked again that another transaction was in the
/// way of.
pub(super) const TRIES: usize = 50;
pub(super) const PAUSE: Duration = Duration::from_millis(20);

pub(in crate::engine) fn open<C: Connector>(
    core: &Arc<Core<C>>,
    queue: String,
    terms: Terms,
) -> Arc<dyn Queue> {
    let number = in_transaction::topic(&core.namespace, &queue);
    let topic = core.queues.topic(number);
    Arc::new(Named(Arc::new(Handle {
        name: Name {
            namespace: core.namespace.to_string(),
            queue,
        },
        terms,
        number,
        topic,
        told: OnceLock::new(),
        core: Arc::clone(core),
    })))
}

pub(super) struct Handle<C: Connector> {
    pub(super) name: Name,
    terms: Terms,
    pub(super) number: i64,
    pub(super) topic: Arc<Topic>,
    /// Made by the first claim: who only pushes listens to nothing.
    told: OnceLock<Subscription>,
    pub(super) core: Arc<Core<C>>,
}

struct Named<C: Connector>(Arc<Handle<C>>);

/// Jobs that were claimed and that nobody has been handed yet; dropped, they go back.
struct Unclaimed<C: Connector> {
    queues: Arc<Queues<C>>,
    topic: Arc<Topic>,
    jobs: Vec<(Claimed, Arc<Hold>)>,
}

impl<C: Connector> Unclaimed<C> {
    /// Gives them back, which leaves none.
    fn give_back(self) -> Self {
        Self {
            queues: Arc::clone(&self.queues),
            topic: Arc::clone(&self.topic),
            jobs: Vec::new(),
        }
    }
}

impl<C: Connector> Drop for Unclaimed<C> {
    fn drop(&mut self) {
        for (job, _) in &self.jobs {
            let ack = Ack {
                ticket: job.ticket,
                archive: false,
            };
            self.queues
                .settle_later(&self.topic, ack, &Outcome::Release);
        }
    }
}

impl<C: Connector> Handle<C> {
    fn failed(&self, operation: &'static str) -> impl Fn(Error) -> Error {
        move |error| error.during(operation).on(&self.name.queue)
    }

    fn invalid(&self, operation: &'static str, message: String) -> Error {
        Error::new(ErrorKind::Invalid, operation, message).on(&self.name.queue)
    }

    pub(super) async fn call<O: Queued>(&self, asked: O) -> Result<O::Output> {
        let answer = self.core.queues.batcher.call(asked).await;
        answer.map_err(|error| error.on(&self.name.queue))
    }

    /// Asks for what takes long.
    pub(super) async fn call_in_bulk<O: Queued>(&self, asked: O) -> Result<O::Output> {
        let answer = self.core.sweeps.batcher().call(asked).await;
        answer.map_err(|error| error.on(&self.name.queue))
    }

    /// Runs something in parts until one of them is not full, or until `most` is done.
    async fn in_parts<O: Queued<Output = i64>>(&self, part: impl Fn() -> O) -> Result<u64> {
        let mut total = 0;
        loop {
            let done = self.call_in_bulk(part()).await?;
            total += done.max(0).unsigned_abs();
            if done < PART {
                return Ok(total);
            }
        }
    }

    /// Hears of pushes by other processes from now on.
    fn listen(&self) {
        self.told.get_or_init(|| {
            let topic = Arc::downgrade(&self.topic);
            self.core.notices.subscribe(self.number, move || {
                if let Some(topic) = topic.upgrade() {
                    topic.bump();
                }
            })
        });
    }

    fn sweep_later(&self) {
        self.core.sweeps.later(self.number, || SweepQueue {
            name: self.name.clone(),
            keep: micros(self.terms.keep),
            most: PART,
        });
    }
}

impl<C: Connector> Named<C> {
    fn check_time(&self, outcome: &Outcome) -> Result<()> {
        match outcome {
            Outcome::Extend(lease) => check_lease(*lease).map_err(self.0.failed("extend")),
            Outcome::Nack { after: time, .. } | Outcome::Snooze(time) if *time > MAX_DELAY => {
                let message = format!("a delay of {time:?}; allowed are 10 years");
                Err(self.0.invalid("settle", message))
            }
            _ => Ok(()),
        }
    }

    /// Asks for a claim together with completions; what is claimed is kept for whoever takes it.
    async fn turn(&self, acks: Vec<Ack>, claim: &Claim) -> Result<(Vec<bool>, Unclaimed<C>, bool)> {
        let handle = &self.0;
        let queues = &handle.core.queues;
        let sent = queues.keeper.now();
        let (lanes, partial) = handle.topic.lanes(sent);
        let number = random::number()?;
        let most = i64::try_from(claim.most).unwrap_or(i64::MAX);
        let turn = Turn {
            acks,
            namespace: handle.name.namespace.clone(),
            queue: handle.name.queue.clone(),
            most,
            lease: micros(claim.lease),
            lanes,
            worker: claim.worker_name(),
            claim: number,
            lost: handle.topic.lost(),
        };
        let (sender, answer) = oneshot::channel();
        let (lease, renewed) = (claim.lease, claim.renewed);
        let (keeping, topic) = (Arc::clone(queues), Arc::clone(&handle.topic));
        let completed: Vec<_> = turn.acks.iter().map(|ack| ack.ticket).collect();
        keeping.kept.set_settling(&completed, true);
        queues.batcher.submit(turn, move |outcome| {
            if let Err(error) = &outcome {
                keeping.kept.set_settling(&completed, false);
                // It was carried out, perhaps, and nobody has what it took.
                if matches!(error.kind(), ErrorKind::Indeterminate | ErrorKind::Corrupt) {
                    topic.claim_lost(number, keeping.keeper.now() + lease);
                }
            }
            let outcome = outcome.map(|turned| {
                keeping.kept.forget_all(&completed);
                topic.claimed(&keeping.keeper, most, &turned);
                if turned.picked < most && !partial {
                    topic.looked(sent);
                }
                let tickets = turned.claimed.iter().map(|job| job.ticket);
                let holds = keeping.kept.keep(tickets, sent, lease, renewed);
                // By this clock their leases ended before anybody knew of them: they go back.
                let late = keeping.keeper.now() >= deadline(sent, lease);
                let more = turned.picked >= most || partial || late;
                let unclaimed = Unclaimed {
                    jobs: turned.claimed.into_iter().zip(holds).collect(),
                    queues: keeping,
                    topic,
                };
                let unclaimed = if late {
                    unclaimed.give_back()
                } else {
                    unclaimed
                };
                (turned.acked, unclaimed, more)
            });
            // A caller that left does not want them: they go back.
            drop(sender.send(outcome));
        });
        let outcome = answer.await.unwrap_or_else(|_| Err(ended("claim")));
        if let Ok((_, unclaimed, _)) = &outcome {
            telemetry::claimed(&handle.name.queue, unclaimed.jobs.len());
        }
        outcome.map_err(|error| error.on(&handle.name.queue))
    }
}

#[async_trait]
impl<C: Connector> Queue for Named<C> {
    fn name(&self) -> &str {
        &self.0.name.queue
    }

    fn namespace(&self) -> &str {
        &self.0.name.namespace
    }

    fn terms(&self) -> &Terms {
        &self.0.terms
    }

    async fn push_all(&self, jobs: Vec<Job>) -> Result<Vec<Pushed>> {
        let handle = &self.0;
        in_transaction::check(self, &jobs).map_err(handle.failed("push"))?;
        let (keyed, plain): (Vec<_>, Vec<_>) = jobs.iter().partition(|job| job.is_keyed());
        let ids = handle.push_plain(&plain).await?;
        let mut pushed = Vec::with_capacity(keyed.len());
        for job in keyed {
            pushed.push(handle.push_keyed(job).await?);
        }
        handle.topic.bump();
        Ok(in_transaction::in_order(&jobs, ids, pushed))
    }

    async fn exchange(&self, acks: Vec<Ticket>, claim: Option<&Claim>) -> Result<Exchange> {
        let handle = &self.0;
        if let Some(claim) = claim {
            claim.check().map_err(handle.failed("claim"))?;
        }
        let seen = handle.topic.generation();
        handle.sweep_later();
        let queues = &handle.core.queues;
        let archive = handle.terms.archive;
        let acks: Vec<_> = acks
            .into_iter()
            .map(|ticket| Ack { ticket, archive })
            .collect();
        let Some(claim) = claim else {
            // Asked for together, so that they travel together.
            let tickets: Vec<_> = acks.iter().map(|ack| ack.ticket).collect();
            queues.kept.set_settling(&tickets, true);
            let calls: Vec<_> = acks.into_iter().map(|ack| handle.call(ack)).collect();
            let answers = futures_util::future::join_all(calls).await;
            let acked = answers.into_iter().collect::<Result<Vec<_>>>();
            if acked.is_err() {
                queues.kept.set_settling(&tickets, false);
            }
            let acked = acked?;
            queues.kept.forget_all(&tickets);
            return Ok(Exchange::new(acked, Vec::new(), false, seen));
        };
        handle.listen();
        let alone = acks.is_empty();
        let (acked, mut unclaimed, more) = match self.turn(acks, claim).await {
            // What it took, if it took something, is found by another.
            Err(error) if alone && error.kind() == ErrorKind::Indeterminate => {
                self.turn(Vec::new(), claim).await?
            }
            outcome => outcome?,
        };
        let jobs = std::mem::take(&mut unclaimed.jobs);
        let queue: Arc<dyn Queue> = Arc::new(Self(Arc::clone(handle)));
        let deliveries = jobs
            .into_iter()
            .map(|(job, hold)| Delivery::held(job, Arc::clone(&queue), hold))
            .collect();
        Ok(Exchange::new(acked, deliveries, more, seen))
    }

    async fn arrival(&self, seen: u64, at_most: Duration) -> Duration {
        let keeper = &self.0.core.links.keeper;
        let until = keeper.now().saturating_add(at_most);
        unless(keeper.sleep(at_most), self.0.topic.arrival(seen)).await;
        until.saturating_sub(keeper.now())
    }

    async fn settle(&self, ticket: Ticket, outcome: Outcome) -> Result<Settled> {
        self.check_time(&outcome)?;
        let handle = &self.0;
        let queues = &handle.core.queues;
        let Some(settle) = Settle::new(ticket, &outcome) else {
            let acked = self.exchange(vec![ticket], None).await?.acked == [true];
            return Ok(if acked { Settled::Done } else { Settled::Lost });
        };
        let mut tries = TRIES;
        loop {
            let sent = queues.keeper.now();
            let extends = matches!(outcome, Outcome::Extend(_));
            let batcher = if extends {
                &queues.renewals
            } else {
                &queues.batcher
            };
            queues.kept.set_settling(&[ticket], !extends);
            let settled = batcher.call(settle.clone()).await;
            if settled.is_err() {
                queues.kept.set_settling(&[ticket], false);
            }
            let settled = settled.map_err(|error| error.on(&handle.name.queue))?;
            tries -= 1;
            match (&outcome, settled) {
                (_, Settled::Locked) if tries > 0 => queues.keeper.sleep(PAUSE).await,
                (Outcome::Extend(lease), Settled::Done) => {
                    queues.kept.extended(ticket, sent, *lease);
                    return Ok(settled);
                }
                (Outcome::Extend(_), Settled::Lost) => {
                    queues.kept.lose(ticket);
                    return Ok(settled);
                }
                _ => {
                    queues.kept.forget(ticket);
                    handle.topic.returned();
                    return Ok(settled);
                }
            }
        }
    }

    fn settle_later(&self, ticket: Ticket, outcome: Outcome) {
        let handle = &self.0;
        let queues = &handle.core.queues;
        let ack = Ack {
            ticket,
            archive: handle.terms.archive,
        };
        queues.settle_later(&handle.topic, ack, &outcome);
    }

    async fn sleep(&self, time: Duration) {
        self.0.core.links.keeper.sleep(time).await;
    }

    async fn set_paused(&self, paused: bool) -> Result<()> {
        let set = SetPaused {
            name: self.0.name.clone(),
            paused,
            topic: self.0.number,
        };
        self.0.call(set).await?;
        self.0.topic.bump();
        Ok(())
    }

    async fn cancel(&self, ids: Vec<i64>) -> Result<Vec<i64>> {
        let cancel = Cancel {
            name: self.0.name.clone(),
            ids,
        };
        let cancelled = self.0.call(cancel).await?;
        Ok(cancelled)
    }

    async fn purge(&self) -> Result<u64> {
        let part = || Purge {
            name: self.0.name.clone(),
            most: PART,
        };
        self.0.in_parts(part).await
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

    async fn dead_letters(&self, after: i64, most: usize) -> Result<Vec<DeadLetter>> {
        if most > MAX_LETTERS {
            let message = format!("{most} dead letters; allowed are {MAX_LETTERS}");
            return Err(self.0.invalid("dead_letters", message));
        }
        let read = ReadDead {
            name: self.0.name.clone(),
            after,
            most: i64::try_from(most).unwrap_or(i64::MAX),
        };
        let rows = self.0.call_in_bulk(read).await?;
        Ok(rows.into_iter().map(DeadLetter::from).collect())
    }

    async fn redrive(&self, ids: Vec<i64>) -> Result<u64> {
        let part = || Redrive {
            name: self.0.name.clone(),
            ids: ids.clone(),
            most: PART,
            topic: self.0.number,
        };
        let mut total = 0;
        let outcome = loop {
            match self.0.call_in_bulk(part()).await {
                Ok(part) => {
                    total += part.redriven.max(0).unsigned_abs();
                    // What stays behind, of two with one unique key, has been looked at as well.
                    if part.looked < PART {
                        break Ok(total);
                    }
                }
                Err(error) => break Err(error),
            }
        };
        self.0.topic.bump();
        outcome
    }

    async fn discard(&self, ids: Vec<i64>) -> Result<u64> {
        let part = || Discard {
            name: self.0.name.clone(),
            ids: ids.clone(),
            most: PART,
        };
        self.0.in_parts(part).await
    }
}

impl<C: Connector> fmt::Debug for Named<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Queue").field(&self.0.name.queue).finish()
    }
}
