//! What a worker reports about itself.

use std::time::Duration;

use crate::error::Error;
use crate::queue::{Delivery, Outcome, Unhandled};

/// Observes what a worker does, for logs and metrics. The calls are made between the polls of the
/// worker, so they must not block.
#[allow(unused_variables, reason = "whoever implements it wants the names")]
pub trait Observe: Send + Sync + 'static {
    /// This many jobs were claimed.
    fn claimed(&self, jobs: usize) {}

    /// A handler begins.
    fn started(&self, job: &Delivery) {}

    /// A handler has finished, or was dropped, after this time.
    fn finished(&self, job: &Delivery, ending: &Ending, took: Duration) {}

    /// Nobody ran a handler to its end: what was given to [`spawn_with`](super::Worker::spawn_with) was
    /// dropped, for example by a runtime that has shut down. The job is put off for a second, without
    /// counting an attempt, and the worker claims others after a pause.
    fn dropped(&self, job: &Delivery) {}

    /// Jobs of a name that this worker has no handler for have been due for more than a minute: no
    /// worker has a handler, or those that have one do not keep up. The worker checks once a
    /// minute.
    fn unhandled(&self, queue: &str, jobs: &Unhandled) {}

    /// The queue could not be reached, or refused; the worker retries after a pause.
    fn failed(&self, error: &Error) {}
}

/// How a handler ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// It completed its job.
    Done,
    /// It failed, panicked or took too long, and the job is retried after `after` unless this was
    /// its last attempt.
    Failed {
        /// Why.
        error: String,
        /// The time to wait.
        after: Duration,
    },
    /// The handler returned that it has failed for good.
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
    /// It postponed the job.
    Snoozed(Duration),
    /// It was stopped, because its delivery was lost.
    Lost,
    /// It was stopped, because the worker ended; the job is released without counting an attempt.
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
            Self::Lost | Self::Released => Outcome::Interrupt,
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

/// What a worker did, as numbers of jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Claimed; the sum of all others.
    pub claimed: u64,
    /// Done and acknowledged.
    pub done: u64,
    /// Failed, and to be retried.
    pub failed: u64,
    /// Failed for good: dead letters.
    pub dead: u64,
    /// Postponed.
    pub snoozed: u64,
    /// Given back, without counting an attempt.
    pub released: u64,
    /// Lost because their lease expired, they were cancelled, or their outcome was not sent in
    /// time: whatever the handler did, the job may be run again.
    pub lost: u64,
    /// Sent, but the answer never arrived: they may have counted, or may be run again.
    pub unknown: u64,
}
