//! A job in the tables: one that is live, and one that has ended.

use crate::queue::Ticket;
use crate::queue::operations::{FailedAttempt, Name, NewJob};

#[derive(Clone, Debug)]
pub(in crate::queue) struct LiveJob {
    pub(in crate::queue) queue: Name,
    pub(in crate::queue) job: NewJob,
    pub(in crate::queue) unique_key: String,
    pub(in crate::queue) run_at: i64,
    /// While it is parked: when it is due.
    pub(in crate::queue) due_at: Option<i64>,
    pub(in crate::queue) created_at: i64,
    pub(in crate::queue) attempt: i64,
    pub(in crate::queue) running: Option<Running>,
    pub(in crate::queue) started_at: Option<i64>,
    pub(in crate::queue) worker: String,
    pub(in crate::queue) error: String,
    /// The recurring task that it is a run of; empty is none.
    pub(in crate::queue) task: String,
    /// From when on it is not delivered any more.
    pub(in crate::queue) expires_at: Option<i64>,
    pub(in crate::queue) errors: Vec<FailedAttempt>,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::queue) struct Running {
    pub(in crate::queue) token: i64,
    pub(in crate::queue) claim: i64,
    pub(in crate::queue) lease_until: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::queue) enum Status {
    Completed,
    Failed,
    Cancelled,
}

#[derive(Clone, Debug)]
pub(in crate::queue) struct Ended {
    pub(in crate::queue) status: Status,
    pub(in crate::queue) at: i64,
    pub(in crate::queue) job: LiveJob,
    /// When it is deleted.
    pub(in crate::queue) expires_at: Option<i64>,
}

impl LiveJob {
    pub(in crate::queue) fn is_held(&self, now: i64) -> bool {
        self.running
            .is_some_and(|running| running.lease_until > now)
    }

    /// Whether one of these claims has taken it.
    pub(in crate::queue) fn is_of(&self, claims: &[i64]) -> bool {
        self.running
            .is_some_and(|running| claims.contains(&running.claim))
    }

    /// Whether it has one of these names; none are all.
    pub(in crate::queue) fn is_named(&self, names: &[String]) -> bool {
        names.is_empty() || names.contains(&self.job.name)
    }

    /// The bytes of its payload.
    pub(in crate::queue) fn size(&self) -> i64 {
        i64::try_from(self.job.payload.len()).unwrap_or(i64::MAX)
    }

    pub(in crate::queue) fn is_expired(&self, now: i64) -> bool {
        self.attempt == 0 && self.expires_at.is_some_and(|at| at <= now)
    }

    /// Remembers why its attempt failed, with the last ten.
    pub(in crate::queue) fn fail(&mut self, now: i64, error: &str) {
        if self.errors.len() >= 10 {
            self.errors.remove(0);
        }
        self.errors.push(FailedAttempt {
            attempt: self.attempt,
            at: now,
            worker: (!self.worker.is_empty()).then(|| self.worker.clone()),
            error: error.chars().take(1000).collect(),
        });
    }

    pub(in crate::queue) fn has(&self, ticket: Ticket) -> bool {
        self.running
            .is_some_and(|running| running.token == ticket.token)
    }
}
