//! What a worker sends: completions, together with its next claim.

use std::sync::Arc;
use std::time::Duration;

use super::{Boxed, Done, Run};
use crate::error::{Error, ErrorKind, Result};
use crate::queue::{Claim, Delivery, Exchange, MAX_CLAIM, Outcome, Settled, Ticket, Waiting};
use crate::sync::atomic::Ordering;
use crate::worker::observe::Observe;
use crate::worker::pace::{AHEAD, BEGUN_WITHIN};
use crate::worker::settling::is_passing;

/// The time after which a completion is sent again that met a row lock.
const DELAY: Duration = Duration::from_millis(100);

pub(super) struct PendingExchange {
    pub(super) answer: Boxed<Result<Exchange>>,
    pub(super) acks: Vec<Done>,
    claimed: usize,
    /// Whether the claim was only for calls that gather.
    for_batches: bool,
    /// No other work was pending.
    alone: bool,
    since: Duration,
}

impl Run {
    /// Sends completions, together with a claim if there may be jobs and room for them.
    pub(super) fn send(&mut self) {
        if self.exchange.is_some() || self.pause.is_some() {
            return;
        }
        let claim = self.claim();
        if claim.is_none() {
            self.wait_for_arrival();
        }
        if claim.is_none() && self.done.is_empty() {
            return;
        }
        let most = self.done.len().min(MAX_CLAIM);
        let acks: Vec<_> = self.done.drain(..most).collect();
        let tickets = tickets(&acks);
        let claimed = claim.as_ref().map_or(0, |(claim, _)| claim.most);
        let for_batches = claim.as_ref().is_some_and(|(_, for_batches)| *for_batches);
        let claim = claim.map(|(claim, _)| claim);
        let queue = Arc::clone(&self.queue);
        self.exchange = Some(PendingExchange {
            answer: Box::pin(async move { queue.exchange(tickets, claim.as_ref()).await }),
            acks,
            claimed,
            for_batches,
            alone: self.has_nothing(),
            since: self.queue.now(),
        });
    }

    /// The next claim, and whether it is only for calls that gather.
    fn claim(&mut self) -> Option<(Claim, bool)> {
        if self.stopping || self.spawn_pause.is_some() {
            return None;
        }
        let gathering = self.calls.want();
        let want = if self.may_have_jobs { self.want() } else { 0 };
        // Where some handlers take one job at a time, few are claimed for all: both kinds of claim take turns.
        let alone = self.handlers.smallest_batch().is_some();
        if gathering > 0 && !(want > 0 && (alone || self.calls.take_turn())) {
            let names = self.calls.names(&self.handlers.batches);
            let claim = self.settings.claim.clone().names(names);
            return Some((prefetch(claim, gathering), true));
        }
        (want > 0).then(|| (prefetch(self.settings.claim.clone(), want), false))
    }

    /// How many jobs of any name there is room for.
    fn want(&self) -> usize {
        let (concurrency, free) = (self.slots.fair(), self.slots.free());
        let most = self.settings.prefetch.unwrap_or(AHEAD * concurrency);
        let ahead = self.pace.ahead(concurrency, most);
        let room = match self.handlers.smallest_batch() {
            None => free + ahead,
            Some(size) => {
                let most = self.settings.prefetch.unwrap_or(MAX_CLAIM);
                free * size + (ahead * size).min(most)
            }
        };
        room.saturating_sub(self.prefetched.len()).min(MAX_CLAIM)
    }

    fn wait_for_arrival(&mut self) {
        let waits = !self.may_have_jobs || self.calls.is_waiting();
        if self.stopping || !waits || self.arrival.is_some() {
            return;
        }
        let (queue, seen) = (Arc::clone(&self.queue), self.seen);
        let time = self.settings.poll.mul_f64(0.75 + fastrand::f64() / 2.0);
        self.arrival = Some(Box::pin(async move {
            queue.arrival(seen, time).await;
        }));
    }

    pub(super) fn answered(&mut self, answer: Result<Exchange>) {
        let Some(exchange) = self.exchange.take() else {
            return;
        };
        match answer {
            Ok(answer) => {
                self.pauses.end();
                if exchange.claimed > 0 {
                    let took = self.queue.now().saturating_sub(exchange.since);
                    self.pace.exchanged(took);
                    let more = answer.more || answer.deliveries.len() >= exchange.claimed;
                    self.calls.may_have_jobs = more;
                    if !exchange.for_batches {
                        self.may_have_jobs = more;
                    } else if answer.seen != self.seen {
                        // What has arrived may have other names.
                        self.may_have_jobs = true;
                    }
                    self.seen = answer.seen;
                }
                let found = self.may_have_jobs || !answer.deliveries.is_empty();
                self.found_nothing = exchange.alone && exchange.claimed > 0 && !found;
                self.acknowledged(exchange.acks, answer.acked);
                self.take(answer.deliveries);
            }
            Err(error) => self.failed(exchange, error),
        }
    }

    fn acknowledged(&mut self, acks: Vec<Done>, answers: Vec<Result<bool>>) {
        for (done, answer) in acks.into_iter().zip(answers) {
            let counter = match answer {
                Err(error) => {
                    self.unacknowledged(done, &error);
                    continue;
                }
                Ok(true) => {
                    done.delivery.attempted(&Outcome::Ack, Settled::Done);
                    &mut self.summary.done
                }
                Ok(false) if done.delivery.is_acked_in_transaction() => &mut self.summary.done,
                Ok(false) if done.unsure => &mut self.summary.unknown,
                Ok(false) => &mut self.summary.lost,
            };
            *counter += 1;
        }
        if !self.delayed.is_empty() && self.delay.is_none() {
            let queue = Arc::clone(&self.queue);
            self.delay = Some(Box::pin(async move { queue.sleep(DELAY).await }));
        }
    }

    /// Keeps completions that could not be sent for another attempt, while others go on.
    fn unacknowledged(&mut self, mut done: Done, error: &Error) {
        done.unsure |= may_have_happened(error);
        let again = is_passing(error) && !self.grace_over.load(Ordering::Acquire);
        if again && !done.delivery.is_lost() {
            self.delayed.push(done);
        } else if done.unsure {
            self.summary.unknown += 1;
        } else {
            self.summary.lost += 1;
        }
    }

    fn take(&mut self, deliveries: Vec<Delivery>) {
        if deliveries.is_empty() {
            return;
        }
        let count = deliveries.len();
        self.summary.claimed += u64::try_from(count).unwrap_or(u64::MAX);
        self.settings.observer.claimed(count);
        if self.calls.is_gathering() {
            self.gather_or_keep(deliveries);
        } else {
            self.prefetched.extend(deliveries);
        }
        if self.stopping {
            self.return_unbegun();
        }
    }

    /// Keeps what was done for another try, unless its lease is surely over.
    fn failed(&mut self, exchange: PendingExchange, error: Error) {
        self.settings.observer.failed(&error);
        let passing = is_passing(&error);
        let grace_over = self.grace_over.load(Ordering::Acquire);
        // What refuses a claim may not refuse completions: they are sent once more, alone.
        let again = (passing || exchange.claimed > 0) && !grace_over;
        for mut done in exchange.acks {
            done.unsure |= may_have_happened(&error);
            if again && !done.delivery.is_lost() {
                self.done.push(done);
            } else if done.unsure {
                self.summary.unknown += 1;
            } else {
                self.summary.lost += 1;
            }
        }
        self.may_have_jobs = true;
        self.calls.may_have_jobs = true;
        if passing {
            let (queue, pause) = (Arc::clone(&self.queue), self.pauses.next());
            self.pause = (!grace_over)
                .then(|| -> Boxed<()> { Box::pin(async move { queue.sleep(pause).await }) });
        } else {
            self.refused.get_or_insert(error);
            self.stop();
        }
    }
}

fn prefetch(mut claim: Claim, most: usize) -> Claim {
    claim.most = most;
    claim.begun_within = Some(BEGUN_WITHIN);
    claim.waiting = Waiting::Worker;
    claim
}

fn may_have_happened(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Indeterminate | ErrorKind::Corrupt)
}

fn tickets(acks: &[Done]) -> Vec<Ticket> {
    acks.iter().map(|done| done.delivery.ticket()).collect()
}
