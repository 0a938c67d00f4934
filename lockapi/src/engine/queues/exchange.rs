//! Completing and claiming.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::Queues;
use super::floors::{Floors, PriorityFloors};
use super::handle::{Handle, QueueHandle};
use super::limiting::{self, Asked};
use super::topic::Topic;
use crate::engine::batcher::{Queued, answer_lost};
use crate::engine::clock::Time;
use crate::engine::renewal::deadline;
use crate::error::{Error, ErrorKind, LOCKED, Result};
use crate::hold::Hold;
use crate::lease::micros;
use crate::queue::{
    Ack, Claim, Claimed, CompleteAndClaim, CompletedAndClaimed, DELETED, Delivery, Exchange,
    FOR_EVER, Limited, Outcome, Queue, Settle, Settled, Ticket,
};
use crate::random;
use crate::telemetry;

/// The maximum bytes of payload in a claim, without its last job: they are in one answer.
pub(super) const MAX_BYTES: i64 = 8 << 20;

/// What a claim has left.
#[derive(Clone, Copy)]
enum Remaining {
    /// There may be more to claim at once.
    More,
    /// There may be more to admit.
    Parked,
    /// The limit of the queue holds back what there is.
    Limited,
    /// Another claim has the limit.
    Busy,
    None,
}

/// Jobs that were claimed and not delivered yet; dropped, they are released.
pub(super) struct Unclaimed {
    queues: Arc<Queues>,
    topic: Arc<Topic>,
    pub(super) jobs: VecDeque<(Claimed, Arc<Hold>)>,
}

/// What a claim has taken.
pub(super) struct Taken {
    unclaimed: Unclaimed,
    remaining: Remaining,
}

impl Taken {
    /// Whether there was nothing to claim.
    pub(super) fn is_nothing(&self) -> bool {
        let none = matches!(self.remaining, Remaining::None | Remaining::Parked);
        none && self.unclaimed.jobs.is_empty()
    }

    /// Whether none of its jobs are left, and there are more to claim at once.
    pub(super) fn is_used_up(&self) -> bool {
        matches!(self.remaining, Remaining::More) && self.unclaimed.jobs.is_empty()
    }

    /// Parts with the first of its jobs.
    pub(super) fn first(&mut self, most: usize) -> Self {
        let jobs = &mut self.unclaimed.jobs;
        let first = jobs.drain(..most.min(jobs.len())).collect();
        Self {
            unclaimed: self.unclaimed.with(first),
            remaining: self.remaining,
        }
    }

    /// Puts jobs back before its own.
    pub(super) fn put_back(&mut self, mut first: Self) {
        let first = std::mem::take(&mut first.unclaimed.jobs);
        for job in first.into_iter().rev() {
            self.unclaimed.jobs.push_front(job);
        }
    }
}

impl Unclaimed {
    fn with(&self, jobs: VecDeque<(Claimed, Arc<Hold>)>) -> Self {
        Self {
            queues: Arc::clone(&self.queues),
            topic: Arc::clone(&self.topic),
            jobs,
        }
    }

    /// Gives them back, which leaves none.
    fn give_back(self) -> Self {
        self.with(VecDeque::new())
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        for (job, _) in &self.jobs {
            let ack = Ack {
                ticket: job.ticket,
                keep: DELETED,
            };
            self.queues
                .settle_later(&self.topic, ack, &Outcome::Release, FOR_EVER);
        }
    }
}

impl Handle {
    pub(super) async fn exchange(
        self: &Arc<Self>,
        acks: Vec<Ticket>,
        claim: Option<&Claim>,
    ) -> Result<Exchange> {
        if let Some(claim) = claim {
            claim.check().map_err(self.failed("claim"))?;
        }
        let seen = self.topic.generation();
        self.sweep_later();
        let Some(claim) = claim else {
            let acked = self.complete_all(acks).await;
            self.place_left();
            self.topic.room_left();
            return Ok(Exchange::new(acked, Vec::new(), false, seen));
        };
        self.listen();
        self.search_below_floors_later(&claim.names);
        let admissions = self.topic.admissions();
        let begun = self.topic.admissions_begun();
        if acks.is_empty() && self.was_just_asked(claim) {
            return Ok(Exchange::new(Vec::new(), Vec::new(), false, seen));
        }
        let (acked, mut taken) = self.complete_and_claim(acks, claim).await?;
        let timer = &self.core.connections.timer;
        let until = timer.now() + limiting::TRIES_FOR;
        for busy in 0..limiting::TRIES {
            let is_busy = matches!(taken.remaining, Remaining::Busy);
            if !is_busy || claim.is_repeated() || timer.now() >= until {
                break;
            }
            timer.sleep(limiting::pause(busy)).await;
            match self.claim_once(claim).await {
                Ok(again) => taken = again,
                Err(error) if acked.is_empty() => return Err(error),
                // The next one, which completes nothing, is told why.
                Err(_) => taken.remaining = Remaining::More,
            }
        }
        let Taken {
            unclaimed,
            remaining,
        } = taken;
        let more = match remaining {
            Remaining::More => {
                self.admit_now_and_then();
                true
            }
            Remaining::None => false,
            // It has not looked for parked jobs.
            Remaining::Limited | Remaining::Busy => {
                self.admit_now_and_then();
                false
            }
            Remaining::Parked if unclaimed.jobs.is_empty() => {
                let waits = claim.waits();
                let admitted = if waits {
                    self.admit_for_all(begun).await.unwrap_or(Ok(false))
                } else {
                    self.admit(!claim.is_repeated()).await
                };
                match admitted {
                    // The next one, which completes nothing, is told why.
                    Err(_) if !acked.is_empty() => true,
                    // Another caller may have admitted them since the claim, or is about to learn that it has.
                    admitted => {
                        admitted?
                            || (!waits && self.topic.is_admission_running())
                            || self.topic.admissions() != admissions
                    }
                }
            }
            Remaining::Parked => {
                self.admit_later();
                false
            }
        };
        Ok(Exchange::new(acked, self.deliveries(unclaimed), more, seen))
    }

    /// Claims without completing anything.
    async fn claim_once(self: &Arc<Self>, claim: &Claim) -> Result<Taken> {
        if claim.waits() {
            return self.claim_together(claim).await;
        }
        let (_, taken) = self.turn(Vec::new(), claim).await?;
        Ok(taken)
    }

    fn unclaimed(&self) -> Unclaimed {
        Unclaimed {
            queues: Arc::clone(&self.core.queues),
            topic: Arc::clone(&self.topic),
            jobs: VecDeque::new(),
        }
    }

    /// Searches, in the background, for jobs that became due again below the floors of claims.
    fn search_below_floors_later(self: &Arc<Self>, names: &Arc<[String]>) {
        let now = self.core.queues.timer.now();
        let Some((search, request)) = self.topic.next_search(now, &self.name, names) else {
            return;
        };
        let (this, topic) = (Arc::downgrade(self), Arc::clone(&self.topic));
        let (queues, names) = (Arc::clone(&self.core.queues), Arc::clone(names));
        self.core.sweeps.batcher().submit(request, move |result| {
            let timer = &queues.timer;
            let again = topic.search_ended(timer.now(), &names, search, result.as_ref().ok());
            let Some(at) = again else {
                return;
            };
            timer.run_at(at, move || {
                if let Some(this) = this.upgrade() {
                    this.search_below_floors_later(&names);
                }
            });
        });
    }

    fn deliveries(self: &Arc<Self>, mut unclaimed: Unclaimed) -> Vec<Delivery> {
        let jobs = std::mem::take(&mut unclaimed.jobs);
        let queue: Arc<dyn Queue> = Arc::new(QueueHandle(Arc::clone(self)));
        jobs.into_iter()
            .map(|(job, hold)| Delivery::held(job, Arc::clone(&queue), hold))
            .collect()
    }

    /// Completes deliveries, each in a request of its own: they are submitted together, so that they
    /// share a statement.
    pub(super) async fn complete_all(&self, tickets: Vec<Ticket>) -> Vec<Result<bool>> {
        self.complete_by(&tickets, |ticket| self.ack(ticket)).await
    }

    pub(super) async fn complete_by<O: Queued<Output = bool>>(
        &self,
        tickets: &[Ticket],
        ack: impl Fn(Ticket) -> O,
    ) -> Vec<Result<bool>> {
        let heartbeats = &self.core.queues.heartbeats;
        let _settling = heartbeats.settling(tickets);
        let calls = tickets.iter().map(|ticket| self.call(ack(*ticket)));
        let answers = futures_util::future::join_all(calls).await;
        for (ticket, answer) in tickets.iter().zip(&answers) {
            if answer.is_ok() {
                heartbeats.forget(*ticket);
            }
        }
        answers
    }

    /// Completes deliveries in the statement of a claim, which no row that is locked holds up: those
    /// that are known to be locked, and all of a statement that found one, are completed by another.
    async fn complete_and_claim(
        self: &Arc<Self>,
        tickets: Vec<Ticket>,
        claim: &Claim,
    ) -> Result<(Vec<Result<bool>>, Taken)> {
        let heartbeats = &self.core.queues.heartbeats;
        let locked: Vec<_> = tickets.iter().map(|it| heartbeats.is_locked(*it)).collect();
        let free = tickets.iter().zip(&locked).filter(|(_, locked)| !**locked);
        let acks: Vec<_> = free.map(|(ticket, _)| self.ack(*ticket)).collect();
        let (acked, taken) = if acks.is_empty() {
            let taken = match self.claim_once(claim).await {
                // If it took jobs, another claim finds them.
                Err(error) if error.kind() == ErrorKind::Indeterminate => {
                    self.claim_once(claim).await.map_err(|_| error)?
                }
                outcome => outcome?,
            };
            (Vec::new(), taken)
        } else {
            match self.turn(acks, claim).await {
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    let taken = self.claim_once(claim).await?;
                    return Ok((self.complete_unlocked(&tickets).await, taken));
                }
                outcome => outcome?,
            }
        };
        let waiting: Vec<_> = tickets
            .iter()
            .zip(&locked)
            .filter(|(_, locked)| **locked)
            .map(|(ticket, _)| *ticket)
            .collect();
        let mut late = self.complete_unlocked(&waiting).await.into_iter();
        let mut acked = acked.into_iter().map(Ok);
        let answers = locked
            .into_iter()
            .map_while(|locked| if locked { late.next() } else { acked.next() });
        Ok((answers.collect(), taken))
    }

    /// Completes deliveries, except those whose rows are locked by a transaction.
    async fn complete_unlocked(&self, tickets: &[Ticket]) -> Vec<Result<bool>> {
        let heartbeats = &self.core.queues.heartbeats;
        let _settling = heartbeats.settling(tickets);
        let calls = tickets.iter().map(async |ticket| {
            match self.call(Settle::completion(self.ack(*ticket))).await? {
                Settled::Done | Settled::Dead => Ok(true),
                Settled::Lost => Ok(false),
                Settled::Locked => {
                    heartbeats.set_locked(*ticket);
                    let message = format!("the job is {LOCKED}");
                    Err(Error::new(ErrorKind::TimedOut, "ack", message).on(&self.name.queue))
                }
            }
        });
        let answers = futures_util::future::join_all(calls).await;
        for (ticket, answer) in tickets.iter().zip(&answers) {
            if answer.is_ok() {
                heartbeats.forget(*ticket);
            }
        }
        answers
    }

    pub(super) fn ack(&self, ticket: Ticket) -> Ack {
        let keep = self.options.keep();
        Ack { ticket, keep }
    }

    /// Sends a claim together with completions; the claimed jobs are kept until the caller takes them.
    async fn turn(&self, acks: Vec<Ack>, claim: &Claim) -> Result<(Vec<bool>, Taken)> {
        let (sender, answer) = oneshot::channel();
        self.turn_then(acks, claim, move |outcome| {
            // If the caller is gone, they are released.
            drop(sender.send(outcome));
        });
        answer.await.unwrap_or_else(|_| Err(answer_lost("claim")))
    }

    /// The same with a function that is given what becomes of it.
    pub(super) fn turn_then(
        &self,
        acks: Vec<Ack>,
        claim: &Claim,
        then: impl FnOnce(Result<(Vec<bool>, Taken)>) + Send + 'static,
    ) {
        let queues = &self.core.queues;
        let sent = queues.timer.now();
        let Some(asked) = self.topic.ask(sent, claim, !acks.is_empty()) else {
            self.topic.bump_when_open(&queues.timer);
            let unclaimed = self.unclaimed();
            let remaining = Remaining::Limited;
            let taken = Taken {
                unclaimed,
                remaining,
            };
            return then(Ok((Vec::new(), taken)));
        };
        let names = Arc::clone(&claim.names);
        let (start, priorities) = self.topic.priorities(sent, &names);
        let most = most_of(claim).min(start.most.unwrap_or(i64::MAX));
        let order = priorities.iter().map(|(priority, _)| *priority).collect();
        let number = match random::number() {
            Ok(number) => number,
            Err(error) => {
                self.topic.limit_unanswered(&queues.timer, asked);
                return then(Err(error));
            }
        };
        let turn = CompleteAndClaim {
            acks,
            namespace: self.name.namespace.clone(),
            queue: self.name.queue.clone(),
            most,
            lease: micros(claim.lease),
            priorities,
            worker: claim.worker_name(),
            claim: number,
            lost: self.topic.lost(),
            names: names.to_vec(),
            bytes: MAX_BYTES,
            keep_dead: self.options.keep_dead(),
            limited: asked.limited,
        };
        let sent = SentTurn {
            queues: Arc::clone(queues),
            topic: Arc::clone(&self.topic),
            queue: self.name.queue.clone(),
            claim: claim.clone(),
            number,
            completed: turn.acks.iter().map(|ack| ack.ticket).collect(),
            at: sent,
            asked,
            started: start.places,
            most,
            order,
            limit: self.core.connections.timeout,
        };
        queues.heartbeats.set_settling(&sent.completed, true);
        queues.batcher.submit(turn, move |outcome| {
            let queue = sent.queue.clone();
            let outcome = match outcome {
                Ok(turned) => Ok(sent.answered(turned)),
                Err(error) => {
                    sent.failed(&error);
                    Err(error.on(&queue))
                }
            };
            then(outcome);
        });
    }
}

/// A claim that was sent, with completions.
struct SentTurn {
    queues: Arc<Queues>,
    topic: Arc<Topic>,
    queue: String,
    claim: Claim,
    /// The number of the claim.
    number: i64,
    completed: Vec<Ticket>,
    at: Time,
    asked: Asked,
    /// Where it has looked.
    started: PriorityFloors,
    /// How many jobs it takes.
    most: i64,
    /// The priorities, in the order in which it has looked at them.
    order: Vec<i64>,
    /// The time limit of statements.
    limit: Duration,
}

impl SentTurn {
    fn failed(&self, error: &Error) {
        let timer = &self.queues.timer;
        self.topic.limit_unanswered(timer, self.asked);
        self.queues.heartbeats.set_settling(&self.completed, false);
        let now = timer.now();
        // Where it was cancelled sooner, it was not because of what it read.
        if error.sqlstate() == Some("57014") && now.saturating_sub(self.at) > self.limit / 2 {
            let names = &self.claim.names;
            self.topic.claim_timed_out(now, names, &self.started);
        }
        // It may have been executed; then no process has the jobs that it took.
        if matches!(error.kind(), ErrorKind::Indeterminate | ErrorKind::Corrupt) {
            let until = now + self.claim.lease;
            self.topic.claim_lost(self.number, until, &self.claim.names);
        }
    }

    fn answered(self, turned: CompletedAndClaimed) -> (Vec<bool>, Taken) {
        let Self {
            queues,
            topic,
            claim,
            at: sent,
            ..
        } = self;
        if let Some(history) = &queues.history {
            history.saw(turned.now);
        }
        queues.heartbeats.forget_all(&self.completed);
        topic.limit_answered(&queues.timer, self.asked, &turned);
        let most = self.most;
        let looks = (self.started, sent, &*self.order);
        let again = topic.claimed(&queues.timer, &claim.names, looks, most, &turned);
        // A claim of a paused queue has looked at nothing.
        if turned.read.is_some() {
            // Nor at jobs whose names are paused, which lost claims may have taken, however long they are paused.
            let all = turned.picked < most && turned.paused.is_none() && !turned.is_held_back();
            if all && Floors::is_start(&self.started) {
                topic.looked(sent, &claim.names);
            } else if turned.paused.is_none() {
                topic.looked_in_part(sent);
            }
        }
        let tickets = turned.claimed.iter().map(|job| job.ticket);
        let unbegun = claim.begun_within.map(|within| (within, &topic));
        let (lease, heartbeats) = (claim.lease, &queues.heartbeats);
        let holds = heartbeats.keep(tickets, sent, lease, claim.renewed, unbegun);
        // By this clock their leases have ended already: they are released.
        let late = queues.timer.now() >= deadline(sent, lease) || queues.batcher.is_closing();
        let more = turned.picked >= most || turned.limited == Some(Limited::Again);
        let remaining = if more || again || late {
            Remaining::More
        } else if turned.is_held_back() {
            match turned.limited {
                Some(Limited::Busy) => Remaining::Busy,
                _ => Remaining::Limited,
            }
        } else {
            topic.saw_parked(sent, turned.parked);
            if turned.parked {
                Remaining::Parked
            } else {
                Remaining::None
            }
        };
        let unclaimed = Unclaimed {
            jobs: turned.claimed.into_iter().zip(holds).collect(),
            queues,
            topic,
        };
        let unclaimed = if late {
            unclaimed.give_back()
        } else {
            unclaimed
        };
        telemetry::claimed(&self.queue, unclaimed.jobs.len());
        let taken = Taken {
            unclaimed,
            remaining,
        };
        (turned.acked, taken)
    }
}

fn most_of(claim: &Claim) -> i64 {
    i64::try_from(claim.most).unwrap_or(i64::MAX)
}
