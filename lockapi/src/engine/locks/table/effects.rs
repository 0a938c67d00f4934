//! What the shell has to do after a change of the table.

use std::time::Duration;

use super::slot::Waiter;
use crate::engine::clock::Time;
use crate::error::Failure;
use crate::key::LockId;

/// What is to be done once the table is unlocked.
pub(crate) struct Effects<W, H, R> {
    /// Callers and their answers.
    pub(crate) answers: Vec<(W, Answer<H>)>,
    /// Callers that released, and their answers.
    pub(crate) releases: Vec<(R, Result<(), Reason>)>,
    /// Holds that were lost.
    pub(crate) lost: Vec<H>,
    /// How many requests found their lock not free.
    pub(crate) contended: usize,
    /// Sessions whose workers are to be started.
    pub(crate) start: Vec<usize>,
    /// Sessions whose workers are to be woken, a bit for each.
    pub(crate) wake: u128,
    /// When [`tick`](super::LockTable::tick) is to be called.
    pub(crate) timers: Vec<Time>,
    /// Whether to [observe](super::LockTable::observe) what lasts.
    pub(crate) observe: bool,
    /// Sessions that could not be opened to wait.
    pub(crate) unopened: usize,
}

/// The answer to a caller that wants a lock.
#[derive(Debug)]
pub(crate) enum Answer<H> {
    Granted(Granted<H>),
    /// Another holds it, and the caller does not wait.
    Busy,
    Failed(Reason),
}

/// A lock that was granted to a caller.
#[derive(Debug)]
pub(crate) struct Granted<H> {
    pub(crate) lock: LockId,
    /// The number of the hold, for its release.
    pub(crate) id: u64,
    pub(crate) hold: H,
    /// The token; 0 of a lock that is shared.
    pub(crate) fence: i64,
    /// The mark of the session that holds it.
    pub(crate) mark: i64,
    /// How long the caller waited, if the lock was not free.
    pub(crate) waited: Option<Duration>,
}

/// Why something was not done.
#[derive(Clone, Debug)]
pub(crate) enum Reason {
    /// It was no longer held.
    Lost,
    /// As many locks are in use as there may be.
    Full,
    /// The wait would never end.
    Deadlock,
    /// The backend is closed.
    Closed,
    /// The server could not be asked; nothing is held.
    Failure(Failure),
}

impl<W, H, R> Effects<W, H, R> {
    /// For [`change`](super::LockTable::change) alone.
    pub(super) fn new() -> Self {
        Self {
            answers: Vec::new(),
            releases: Vec::new(),
            lost: Vec::new(),
            contended: 0,
            start: Vec::new(),
            wake: 0,
            timers: Vec::new(),
            observe: false,
            unopened: 0,
        }
    }

    pub(super) fn answer(&mut self, reply: W, answer: Answer<H>) {
        self.answers.push((reply, answer));
    }

    /// Answers a waiter, unless it has left.
    pub(super) fn answer_waiter(&mut self, waiter: Waiter<W>, answer: Answer<H>) {
        if let Some(reply) = waiter.reply {
            self.answer(reply, answer);
        }
    }

    pub(super) fn released(&mut self, reply: Option<R>, outcome: Result<(), Reason>) {
        if let Some(reply) = reply {
            self.releases.push((reply, outcome));
        }
    }
}
