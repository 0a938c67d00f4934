//! Priority for one session over those that block it.

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::check_reason;
use super::operations::Blocker;
use crate::blocking::block_on;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Mutex, MutexGuard, Notify};

/// The longest patience and grace.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

type BlockerFilter = dyn Fn(&Blocker) -> bool + Send + Sync;

/// When and which sessions are signalled that block a session with priority.
///
/// ```
/// use std::time::Duration;
/// use lockapi::admin::Priority;
///
/// let priority = Priority::new("add a column to orders")
///     .patience(Duration::from_secs(2))
///     .grace(Duration::from_secs(5))
///     .filter(|blocker| blocker.application.as_deref() != Some("billing"));
/// # let _ = priority;
/// ```
#[derive(Clone)]
pub struct Priority {
    pub(crate) reason: String,
    pub(crate) patience: Duration,
    pub(crate) grace: Option<Duration>,
    pub(crate) filter: Arc<BlockerFilter>,
}

impl Priority {
    /// Priority for this reason, which is in the audit log. The statement of a session that has blocked for a
    /// second is cancelled; if the session still blocks 5 s later, it is terminated.
    pub fn new(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            patience: Duration::from_secs(1),
            grace: Some(Duration::from_secs(5)),
            filter: Arc::new(|_| true),
        }
    }

    /// How long a session may block before its statement is cancelled, at most a day. A session that is idle
    /// in its transaction is not affected by a cancel.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// How long after that the session is terminated, which rolls back its transaction; at most a day.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// Terminates no session.
    #[must_use]
    pub fn cancel_only(mut self) -> Self {
        self.grace = None;
        self
    }

    /// Signals only the sessions for which this returns `true`. It is called on threads of the backend and
    /// must not block.
    #[must_use]
    pub fn filter(mut self, filter: impl Fn(&Blocker) -> bool + Send + Sync + 'static) -> Self {
        self.filter = Arc::new(filter);
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_reason(&self.reason)?;
        let grace = self.grace.unwrap_or_default();
        if self.patience > LONGEST || grace > LONGEST {
            let message = format!(
                "a patience of {:?} and a grace of {grace:?}; allowed are at most 24 hours each",
                self.patience
            );
            return Err(Error::new(ErrorKind::Invalid, "prioritize", message));
        }
        Ok(())
    }
}

impl fmt::Debug for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Priority")
            .field("reason", &self.reason)
            .field("patience", &self.patience)
            .field("grace", &self.grace)
            .finish_non_exhaustive()
    }
}

/// What was done to a session that blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SignalOutcome {
    /// The statement that it ran was cancelled.
    Cancelled,
    /// The session was terminated.
    Terminated,
    /// The role may not signal it, which requires `pg_signal_backend`; or it is a prepared transaction, which somebody has to end
    /// with `ROLLBACK PREPARED`.
    Refused,
}

/// A session that blocked, as it was when it was signalled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SignalledBlocker {
    /// What was done.
    pub outcome: SignalOutcome,
    /// The session.
    pub blocker: Blocker,
}

/// What was done for a session with priority, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The sessions that were signalled.
    pub signalled: Vec<SignalledBlocker>,
    /// The latest error of reading the blocking sessions, if there was one.
    pub error: Option<String>,
}

/// Gives a session priority until it is [finished](Self::finish) or dropped.
#[must_use = "priority ends when it is dropped"]
pub struct PriorityScope {
    pub(crate) shared: Arc<Shared>,
}

/// What the engine and the scope share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    state: Mutex<State>,
    answered: Notify,
}

#[derive(Debug, Default)]
struct State {
    over: bool,
    /// A statement that may signal is under way.
    signalling: bool,
    report: Report,
}

impl Shared {
    /// Begins to look, unless it is over.
    pub(crate) fn begin(&self) -> bool {
        let mut state = self.lock();
        state.signalling = !state.over;
        state.signalling
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut Report)) {
        change(&mut self.lock().report);
    }

    /// A look is over; answers whether there is to be another.
    pub(crate) fn end(&self) -> bool {
        let mut state = self.lock();
        state.signalling = false;
        let again = !state.over;
        drop(state);
        self.answered.notify_waiters();
        again
    }

    fn close(&self) {
        self.lock().over = true;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PriorityScope {
    /// Ends it, and returns which sessions were signalled. It waits for a statement that is under way, and so
    /// includes what that signals.
    ///
    /// # Cancel safety
    /// When dropped, the scope has ended.
    pub async fn finish(self) -> Report {
        self.shared.close();
        loop {
            // Registered before the look, so that an answer in between is not missed.
            let answered = self.shared.answered.notified();
            {
                let mut state = self.shared.lock();
                if !state.signalling {
                    return std::mem::take(&mut state.report);
                }
            }
            answered.await;
        }
    }

    /// As [`finish`](Self::finish), and blocks the calling thread.
    #[must_use = "it returns which sessions were signalled; dropping the scope ends it, too"]
    pub fn finish_blocking(self) -> Report {
        block_on(self.finish())
    }
}

impl Drop for PriorityScope {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl fmt::Debug for PriorityScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PriorityScope").field(&self.shared).finish()
    }
}

#[cfg(all(test, shuttle))]
mod interleavings {
    use super::*;
    use crate::sync::{explore, thread};

    #[test]
    fn the_end_waits_for_what_is_under_way_and_is_woken_by_it() {
        explore(|| {
            let shared = Arc::<Shared>::default();
            let scope = PriorityScope {
                shared: Arc::clone(&shared),
            };
            let looks = thread::spawn(move || {
                let mut last = 0;
                while shared.begin() {
                    last += 1;
                    shared.update(|report| report.error = Some(last.to_string()));
                    if !shared.end() {
                        break;
                    }
                }
                last
            });
            let report = scope.finish_blocking();
            let last = looks.join().unwrap();
            let reported = report.error.map_or(0, |error| error.parse().unwrap());
            assert_eq!(reported, last, "nothing is signalled after the report");
        });
    }
}
