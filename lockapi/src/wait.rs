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

/// The value of work that was done while a guard was held, if it was held until it was released.
pub(crate) fn held_throughout<T>(outcome: Option<T>, released: Result<()>) -> Result<T> {
    released?;
    let lost = || {
        Error::new(
            ErrorKind::Lost,
            "run_exclusive",
            "it was lost while the work ran",
        )
    };
    outcome.ok_or_else(lost)
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
