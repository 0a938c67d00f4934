//! A queue as a worker uses it, with what it claims and settles in the log. Nobody else is told whether a worker was
//! told that a job is done.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use lockapi::queue::{Claim, Exchange, Outcome, Settled, Ticket};
use lockapi::{Error, Queue, Result};
use lockapi_conformance::wrapped::{Wrapped, Wrapper};

use super::jobs::jobs;
use crate::log::{Answer, Failed, How, LOCKED, Log, Op, Pending};

#[derive(Debug)]
pub(super) struct Recorded {
    queue: Arc<dyn Queue>,
    log: Log,
    /// The numbers of jobs that were claimed, by the token of the delivery.
    jobs: Mutex<HashMap<i64, i64>>,
}

impl Recorded {
    pub(super) fn new(queue: Arc<dyn Queue>, log: Log) -> Arc<Wrapped<Self>> {
        Arc::new(Wrapped(Self {
            queue,
            log,
            jobs: Mutex::default(),
        }))
    }

    fn jobs(&self) -> MutexGuard<'_, HashMap<i64, i64>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settling(&self, ticket: Ticket, how: How) -> Pending {
        let token = ticket.token;
        let job = self.jobs().get(&token).copied();
        let job = job.expect("what is settled was claimed before");
        self.log.begin(Op::Settle { job, token, how })
    }
}

/// What a delivery says that is not the latest, or whose job is locked.
fn not_done(kind: &str) -> Answer {
    Answer::Failed {
        what: Failed::NotDone,
        kind: kind.to_owned(),
        message: String::new(),
    }
}

fn acked(acked: Result<bool, &Error>) -> Answer {
    match acked {
        Ok(true) => Answer::Done,
        Ok(false) => not_done("Lost"),
        Err(error) => Answer::failed(error),
    }
}

/// How a delivery ends; nothing for one that goes on.
fn how(outcome: &Outcome) -> Option<How> {
    match outcome {
        Outcome::Ack | Outcome::AckWithResult(_) => Some(How::Ack),
        Outcome::Nack { .. } | Outcome::Reject { .. } => Some(How::Nack),
        Outcome::Snooze(_) | Outcome::Defer(_) => Some(How::Snooze),
        Outcome::Release | Outcome::Interrupt => Some(How::Release),
        Outcome::Abandon => Some(How::Abandon),
        _ => None,
    }
}

#[async_trait]
impl Wrapper for Recorded {
    fn inner(&self) -> &Arc<dyn Queue> {
        &self.queue
    }

    async fn exchange(&self, acks: Vec<Ticket>, claim: Option<&Claim>) -> Result<Exchange> {
        let acking = acks.iter().map(|ticket| self.settling(*ticket, How::Ack));
        let acking: Vec<_> = acking.collect();
        let claiming = claim.map(|_| {
            let queue = self.queue.name().to_owned();
            let (wait, extended) = (0, true);
            self.log.begin(Op::Claim {
                queue,
                wait,
                extended,
            })
        });
        let exchanged = self.queue.exchange(acks, claim).await;
        match &exchanged {
            Ok(exchange) => {
                let claimed = jobs(&exchange.deliveries);
                if let Answer::Jobs(claimed) = &claimed {
                    let by_token = claimed.iter().map(|it| (it.token, it.job));
                    self.jobs().extend(by_token);
                }
                if let Some(claiming) = claiming {
                    claiming.end(claimed);
                }
                for (pending, told) in acking.into_iter().zip(&exchange.acked) {
                    pending.end(acked(told.as_ref().copied()));
                }
            }
            Err(error) => {
                for pending in acking.into_iter().chain(claiming) {
                    pending.end(Answer::failed(error));
                }
            }
        }
        exchanged
    }

    async fn settle(&self, ticket: Ticket, outcome: Outcome) -> Result<Settled> {
        let pending = how(&outcome).map(|how| self.settling(ticket, how));
        let settled = self.queue.settle(ticket, outcome).await;
        if let Some(pending) = pending {
            pending.end(match &settled {
                Ok(Settled::Done) => Answer::Done,
                Ok(Settled::Dead) => Answer::Dead,
                Ok(Settled::Locked) => not_done(LOCKED),
                Ok(_) => not_done("Lost"),
                Err(error) => Answer::failed(error),
            });
        }
        settled
    }

    /// Nobody is told what became of it.
    fn settle_later(&self, ticket: Ticket, outcome: Outcome) {
        drop(how(&outcome).map(|how| self.settling(ticket, how)));
        self.queue.settle_later(ticket, outcome);
    }
}
