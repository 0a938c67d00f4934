//! Telling the queue what became of a delivery that is not done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::observe::Observe;
use super::pace::Pauses;
use crate::error::{Error, ErrorKind};
use crate::queue::{Delivery, Outcome, Queue, Settled};

/// What is known of it in the end.
pub(super) enum Told {
    Settled(Settled),
    /// It never got through.
    Lost,
    /// It may have got through.
    Unknown,
}

/// Whether it may go better a little later.
pub(super) fn is_passing(error: &Error) -> bool {
    error.is_retryable() || error.kind() == ErrorKind::Indeterminate
}

/// Tells it, again and again while the delivery is not lost and the worker not in a `hurry`. A
/// repetition does no harm: it acts on this delivery only.
pub(super) async fn settle(
    queue: Arc<dyn Queue>,
    delivery: Arc<Delivery>,
    outcome: Outcome,
    observer: Arc<dyn Observe>,
    hurry: Arc<AtomicBool>,
) -> (Outcome, Told) {
    delivery.settled_by_caller();
    let mut pauses = Pauses::default();
    let mut unsure = false;
    loop {
        let settling = queue.settle(delivery.ticket(), outcome.clone());
        let error = match settling.await {
            Ok(Settled::Lost) if unsure => return (outcome, Told::Unknown),
            Ok(settled) => return (outcome, Told::Settled(settled)),
            Err(error) => error,
        };
        observer.failed(&error);
        unsure |= error.kind() == ErrorKind::Indeterminate;
        let over = delivery.is_lost() || hurry.load(Ordering::Acquire);
        if over || !is_passing(&error) {
            let told = if unsure { Told::Unknown } else { Told::Lost };
            return (outcome, told);
        }
        queue.sleep(pauses.next()).await;
    }
}
