//! Settling a delivery: sending its outcome to the queue.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::observe::{Ending, Observe};
use super::pace::Pauses;
use super::report::Observer;
use crate::error::{Error, ErrorKind, Result};
use crate::queue::{Delivery, DeliveryState, Outcome, Queue, Settled};
use crate::sync::atomic::{AtomicBool, Ordering};

/// The longest pause between two looks at a row that a transaction has locked.
const LOCKED: Duration = Duration::from_secs(1);

/// What is known about the completion of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settlement {
    Settled(Settled),
    /// It was not applied.
    Lost,
    /// It may have been applied.
    Unknown,
}

/// Whether a repetition may succeed.
pub(super) fn is_passing(error: &Error) -> bool {
    error.is_retryable() || error.kind() == ErrorKind::Indeterminate
}

/// Sends the outcome of one delivery to the queue.
pub(super) struct Settling {
    queue: Arc<dyn Queue>,
    delivery: Arc<Delivery>,
    observer: Observer,
    /// Set when the time of grace is over: what fails then is not tried again.
    grace_over: Arc<AtomicBool>,
    pauses: Pauses,
    unsure: bool,
    /// What is sent in the background when this is dropped without an answer.
    owed: Option<Outcome>,
}

impl Settling {
    pub(super) fn new(
        queue: Arc<dyn Queue>,
        delivery: Arc<Delivery>,
        observer: Observer,
        grace_over: Arc<AtomicBool>,
    ) -> Self {
        Self {
            queue,
            delivery,
            observer,
            grace_over,
            pauses: Pauses::default(),
            unsure: false,
            owed: None,
        }
    }

    /// Sends the outcome, and again after a failure, until the delivery is lost or the time of grace is
    /// over. A repetition does no harm: it acts on this delivery only. When dropped, it is still sent.
    pub(super) fn settle(
        mut self,
        outcome: Outcome,
    ) -> impl Future<Output = (Outcome, Settlement)> + Send {
        self.delivery.settled_by_caller();
        self.owed = Some(outcome.clone());
        async move {
            let settlement = self.settle_now(&outcome).await;
            if let Settlement::Settled(settled) = settlement {
                self.delivery.attempted(&outcome, settled);
            }
            self.owed.take();
            (outcome, settlement)
        }
    }

    async fn settle_now(&mut self, outcome: &Outcome) -> Settlement {
        loop {
            let error = match self.try_settle(outcome).await {
                Ok(Settled::Lost) if self.unsure => return Settlement::Unknown,
                // A transaction has the row: it is sent again.
                Ok(Settled::Locked) => None,
                Ok(settled) => return Settlement::Settled(settled),
                Err(error) => Some(error),
            };
            if self.delivery.is_lost() || self.is_over(error.as_ref()) {
                return self.gave_up();
            }
            let pause = self.pauses.next();
            let most = error.map_or(LOCKED, |_| Duration::MAX);
            self.queue.sleep(pause.min(most)).await;
        }
    }

    /// Settles what its handler has acknowledged in a transaction of its own, once that has ended.
    /// Committed, the job is done whatever the handler answered; rolled back, it is not, and what the
    /// handler answered counts; but `rolled_back` in place of its having done the job. A delivery that was lost is
    /// settled by nobody: it has ended with its lease, as an attempt.
    ///
    /// Answers nothing where the worker had to stop before it knew.
    pub(super) async fn confirm(
        mut self,
        ending: Ending,
        rolled_back: Ending,
    ) -> Option<(Ending, Settlement)> {
        let failed = if ending == Ending::Done {
            rolled_back
        } else {
            ending.clone()
        };
        let outcome = failed.outcome();
        loop {
            match self.delivery_state().await {
                // Whoever has it ended, it was not this transaction.
                Ok(DeliveryState::Ended) if !self.delivery.may_be_completed() => {
                    return Some((Ending::Lost, Settlement::Lost));
                }
                Ok(DeliveryState::Current) if ending == Ending::Lost => {
                    return Some((Ending::Lost, Settlement::Lost));
                }
                Ok(DeliveryState::Done | DeliveryState::Ended) => {
                    let settlement = Settlement::Settled(Settled::Done);
                    return Some((ending.committed(), settlement));
                }
                // It may be this worker itself that has given it back.
                Ok(DeliveryState::Superseded) if self.unsure => {
                    return Some((failed, Settlement::Unknown));
                }
                Ok(DeliveryState::Superseded) => return Some((Ending::Lost, Settlement::Lost)),
                Ok(DeliveryState::Current) => match self.try_settle(&outcome).await {
                    Ok(settled @ (Settled::Done | Settled::Dead)) => {
                        return Some((failed, Settlement::Settled(settled)));
                    }
                    Ok(_) if self.is_over(None) => return None,
                    Err(error) if self.is_over(Some(&error)) => return None,
                    // It has ended since, or is locked.
                    Ok(Settled::Lost | Settled::Locked) | Err(_) => {}
                },
                Err(error) if self.is_over(Some(&error)) => return None,
                Err(_) => {}
            }
            self.pause().await;
        }
    }

    async fn try_settle(&mut self, outcome: &Outcome) -> Result<Settled> {
        let ticket = self.delivery.ticket();
        let mut settled = self.queue.settle(ticket, outcome.clone()).await;
        // The encoding of the database may not have a character of the error.
        if let Err(error) = &settled
            && error.kind() == ErrorKind::Invalid
            && let Some(outcome) = outcome.in_ascii()
        {
            settled = self.queue.settle(ticket, outcome).await;
        }
        if let Err(error) = &settled {
            self.observer.failed(error);
            self.unsure |= error.kind() == ErrorKind::Indeterminate;
        }
        settled
    }

    async fn delivery_state(&self) -> Result<DeliveryState> {
        let delivery_state = self.queue.delivery_state(self.delivery.ticket()).await;
        if let Err(error) = &delivery_state {
            self.observer.failed(error);
        }
        delivery_state
    }

    /// Whether another try makes no sense.
    fn is_over(&self, error: Option<&Error>) -> bool {
        self.grace_over.load(Ordering::Acquire) || error.is_some_and(|error| !is_passing(error))
    }

    fn gave_up(&self) -> Settlement {
        if self.unsure {
            Settlement::Unknown
        } else {
            Settlement::Lost
        }
    }

    async fn pause(&mut self) {
        self.queue.sleep(self.pauses.next().min(LOCKED)).await;
    }
}

impl Drop for Settling {
    fn drop(&mut self) {
        if let Some(outcome) = self.owed.take() {
            self.queue.settle_later(self.delivery.ticket(), outcome);
        }
    }
}
