//! What a worker tells of itself.

use std::time::Duration;

use crate::error::Error;
use crate::queue::{Delivery, Outcome, Unhandled};

/// Is told what a worker does, for logs and metrics. The calls are made between the polls of the
/// worker, so they must not block.
#[allow(unused_variables, reason = "whoever implements it wants the names")]
pub trait Observe: Send + Sync + 'static {
    /// So many jobs were claimed.
    fn claimed(&self, jobs: usize) {}

    /// A handler begins.
    fn started(&self, job: &Delivery) {}

    /// A handler has ended, or was given up, after this time.
    fn finished(&self, job: &Delivery, ending: &Ending, took: Duration) {}

    /// Jobs of a name have been due for more than a minute that this worker has no handler for: none
    /// has, or those that have do not keep up. It looks once in a minute.
    fn unhandled(&self, queue: &str, jobs: &Unhandled) {}

    /// The queue could not be reached, or refused; the worker tries again after a pause.
    fn failed(&self, error: &Error) {}
}

/// How a handler ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// It did its job.
    Done,
    /// It failed, panicked or took too long, and the job is tried again after `after` unless this
    /// was its last attempt.
    Failed {
        /// Why.
        error: String,
        /// The time to wait.
        after: Duration,
    },
    /// The handler said that it has failed for good.
    Rejected {
        /// Why.
        error: String,
    },
    /// The transaction in which it had acknowledged the job was committed, so the job is done; but
    /// then it failed, panicked or took too long.
    Committed {
        /// Why.
        error: String,
    },
    /// It put the job off.
    Snoozed(Duration),
    /// It was stopped, because its delivery was lost.
    Lost,
    /// It was stopped, because the worker ended; the job goes back, uncounted.
    Released,
}

impl Ending {
    /// What is to become of the job.
    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Self::Done | Self::Committed { .. } => Outcome::Ack,
            Self::Failed { error, after } => Outcome::Nack {
                error: error.clone(),
                after: *after,
            },
            Self::Rejected { error } => Outcome::Reject {
                error: error.clone(),
            },
            Self::Snoozed(time) => Outcome::Snooze(*time),
            Self::Lost | Self::Released => Outcome::Release,
        }
    }

    /// The ending of a handler whose job is done by its own transaction.
    pub(super) fn committed(self) -> Self {
        match self {
            Self::Failed { error, .. } | Self::Rejected { error } => Self::Committed { error },
            _ => Self::Done,
        }
    }
}

/// What a worker did, in jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Claimed; the sum of all others.
    pub claimed: u64,
    /// Done and acknowledged.
    pub done: u64,
    /// Failed, and to be tried again.
    pub failed: u64,
    /// Failed for good: dead letters.
    pub dead: u64,
    /// Put off.
    pub snoozed: u64,
    /// Given back, uncounted.
    pub released: u64,
    /// Lost to the end of their lease or by being cancelled, or not told in time: whatever the
    /// handler did, the job may be done again.
    pub lost: u64,
    /// Told, but the answer never came: they may have counted, or may be done again.
    pub unknown: u64,
}
