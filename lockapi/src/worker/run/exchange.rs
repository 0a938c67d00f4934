//! What a worker sends: completions, together with its next claim.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Boxed, Done, Run};
use crate::error::{Error, ErrorKind, Result};
use crate::queue::{Claim, Delivery, Exchange, MAX_CLAIM, Ticket};
use crate::worker::observe::Observe;
use crate::worker::pace::{AHEAD, BEGUN_WITHIN};
use crate::worker::settling::is_passing;

/// The time after which a completion is sent again that met a row lock.
const DELAY: Duration = Duration::from_millis(100);

pub(super) struct Exchanging {
    pub(super) answer: Boxed<Result<Exchange>>,
    pub(super) acks: Vec<Done>,
    claimed: usize,
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
        let claimed = claim.as_ref().map_or(0, |claim| claim.most);
        let queue = Arc::clone(&self.queue);
        self.exchange = Some(Exchanging {
            answer: Box::pin(async move { queue.exchange(tickets, claim.as_ref()).await }),
            acks,
            claimed,
            alone: self.has_nothing(),
            since: self.queue.now(),
        });
    }

    fn claim(&self) -> Option<Claim> {
        if self.stopping || !self.may_have_jobs || self.spawn_pause.is_some() {
            return None;
        }
        let concurrency = self.settings.concurrency;
        let most = self.settings.prefetch.unwrap_or(AHEAD * concurrency);
        let room = self.free() + self.pace.ahead(concurrency, most);
        let want = room.saturating_sub(self.ahead.len()).min(MAX_CLAIM);
        (want > 0).then(|| {
            let mut claim = self.settings.claim.clone();
            claim.most = want;
            claim.begun_within = Some(BEGUN_WITHIN);
            claim
        })
    }

    fn wait_for_arrival(&mut self) {
        if self.stopping || self.may_have_jobs || self.arrival.is_some() {
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
                    self.may_have_jobs = answer.more || answer.deliveries.len() >= exchange.claimed;
                    self.seen = answer.seen;
                }
                let found = self.may_have_jobs || !answer.deliveries.is_empty();
                self.found_nothing = exchange.alone && exchange.claimed > 0 && !found;
                self.acknowledged(exchange.acks, answer.acked);
                self.take(answer.deliveries);
            }
            Err(error) => self.failed(exchange.acks, error),
        }
    }

    fn acknowledged(&mut self, acks: Vec<Done>, answers: Vec<Result<bool>>) {
        for (done, answer) in acks.into_iter().zip(answers) {
            let counter = match answer {
                Err(error) => {
                    self.unacknowledged(done, &error);
                    continue;
                }
                Ok(true) => &mut self.summary.done,
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
        done.unsure |= error.kind() == ErrorKind::Indeterminate;
        let again = is_passing(error) && !self.hurry.load(Ordering::Acquire);
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
        self.ahead.extend(deliveries);
        if self.stopping {
            self.return_unbegun();
        }
    }

    /// Keeps what was done for another try, unless its lease is surely over.
    fn failed(&mut self, acks: Vec<Done>, error: Error) {
        self.settings.observer.failed(&error);
        let passing = is_passing(&error);
        let hurry = self.hurry.load(Ordering::Acquire);
        for mut done in acks {
            done.unsure |= error.kind() == ErrorKind::Indeterminate;
            if passing && !hurry && !done.delivery.is_lost() {
                self.done.push(done);
            } else if done.unsure {
                self.summary.unknown += 1;
            } else {
                self.summary.lost += 1;
            }
        }
        self.may_have_jobs = true;
        if passing {
            let (queue, pause) = (Arc::clone(&self.queue), self.pauses.next());
            self.pause = (!hurry)
                .then(|| -> Boxed<()> { Box::pin(async move { queue.sleep(pause).await }) });
        } else {
            self.refused.get_or_insert(error);
            self.stop();
        }
    }
}

fn tickets(acks: &[Done]) -> Vec<Ticket> {
    acks.iter().map(|done| done.delivery.ticket()).collect()
}
