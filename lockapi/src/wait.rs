//! Waiting for the first of two things, and for nothing, without a runtime.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use futures_util::future::{Either, select};

use crate::error::{Error, ErrorKind, Result};

/// Runs `work` unless `stop` ends first, in which case `work` is dropped.
pub(crate) async fn unless<T>(
    stop: impl Future<Output = ()>,
    work: impl Future<Output = T>,
) -> Option<T> {
    match select(pin!(work), pin!(stop)).await {
        Either::Left((value, _)) => Some(value),
        Either::Right(_) => None,
    }
}

/// Whether a guard was no longer held when it was released.
///
/// A release that did not get through is made up for in the background, and one that came late tells nothing of the
/// time before: they take nothing back of what was done while the guard was held. One that was lost does.
pub(crate) fn was_lost(released: &Result<()>) -> bool {
    matches!(released, Err(error) if error.kind() == ErrorKind::Lost)
}

/// What work is worth that ran while a guard was held, or was dropped because the guard was lost.
pub(crate) fn held_throughout<T, E: From<Error>>(
    operation: &'static str,
    outcome: Option<Result<T, E>>,
    released: Result<()>,
) -> Result<T, E> {
    match (outcome, released) {
        (Some(Err(error)), _) => Err(error),
        (Some(Ok(value)), released) if !was_lost(&released) => Ok(value),
        (_, Err(error)) => Err(error.during(operation).into()),
        (_, Ok(())) => {
            let message = "the guard was lost while the work ran";
            Err(Error::new(ErrorKind::Lost, operation, message).into())
        }
    }
}

/// Lets the other tasks of the thread run once.
pub(crate) async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
