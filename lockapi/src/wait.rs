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

/// What work is worth that ran while a guard was held, or was dropped because the guard was lost.
pub(crate) fn held_throughout<T>(outcome: Option<T>, released: Result<()>) -> Result<T> {
    match (outcome, released) {
        (Some(value), released) => unless_lost(value, released),
        (None, Err(error)) => Err(error),
        (None, Ok(())) => Err(Error::new(
            ErrorKind::Lost,
            "run_exclusive",
            "it was lost while the work ran",
        )),
    }
}

/// A release that did not get through is made up for in the background, and takes nothing back of
/// what was done while the guard was held; one that was lost does.
pub(crate) fn unless_lost<T>(value: T, released: Result<()>) -> Result<T> {
    match released {
        Err(error) if error.kind() == ErrorKind::Lost => Err(error),
        _ => Ok(value),
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
