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

/// What became of work that ran while a guard was held.
pub(crate) enum Held<T, E> {
    Ended(Result<T, E>),
    /// The guard was lost before the work succeeded.
    Lost(Error),
}

impl<T, E> Held<T, E> {
    /// Judges work by its outcome, `None` when it was dropped because the guard was lost, and by the
    /// release of the guard.
    ///
    /// A release that did not get through is made up for in the background, and takes nothing back of
    /// what was done while the guard was held; one that was lost does.
    pub(crate) fn from_parts(outcome: Option<Result<T, E>>, released: Result<()>) -> Self {
        match (outcome, released) {
            (Some(Err(error)), _) => Self::Ended(Err(error)),
            (_, Err(error)) if error.kind() == ErrorKind::Lost => Self::Lost(error),
            (Some(Ok(value)), _) => Self::Ended(Ok(value)),
            (None, _) => Self::Lost(Error::new(
                ErrorKind::Lost,
                "release",
                "it was lost while the work ran",
            )),
        }
    }

    /// One flat result.
    pub(crate) fn during(self, operation: &'static str) -> Result<T, E>
    where
        E: From<Error>,
    {
        match self {
            Self::Ended(outcome) => outcome,
            Self::Lost(error) => Err(error.during(operation).into()),
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
