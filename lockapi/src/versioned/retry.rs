//! Repeating work after a conflict.

use std::error::Error as StdError;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

mod attempts;

pub use attempts::{Attempt, Attempts};

use super::BoxError;
use super::contention::Contention;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::atomic::{AtomicI64, Ordering};

const MOST_ATTEMPTS: u32 = 1000;
const LONGEST: Duration = Duration::from_secs(3600);

/// How work is repeated after a conflict: how often, with which pauses, and until when.
///
/// Keep one for the program: what is learnt about contended rows, and the budget, are shared by its
/// clones. The pause before the n-th repetition is random, up to the base times 2^n, and no longer
/// than the longest (full jitter).
///
/// A row is hot for a second after a conflict on it, or after a writer had to wait for another of this
/// process. On hot rows writers of one process take turns, so that they do not meet at the server, and
/// are told to [lock](Attempt::locks) the rows that they read, so that a writer of another process
/// cannot interfere. A turn that is held for a second, for example by work that waits for another turn,
/// is no longer waited for. Rows are identified by the keys that are passed with the work.
///
/// ```
/// use std::time::Duration;
/// use lockapi::versioned::Retry;
///
/// let retry = Retry::default().attempts(20).deadline(Duration::from_secs(2));
/// ```
#[derive(Clone, Debug)]
pub struct Retry {
    attempts: u32,
    base: Duration,
    longest: Duration,
    deadline: Duration,
    lock_after: u32,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    contention: Contention,
    budget: i64,
    left: AtomicI64,
}

impl Shared {
    fn new(budget: u32) -> Arc<Self> {
        Arc::new(Self {
            contention: Contention::default(),
            budget: budget.into(),
            left: AtomicI64::new(budget.into()),
        })
    }

    /// Takes one from the budget, if there is one left.
    fn spend(&self) -> bool {
        let spent = self.left.fetch_sub(1, Ordering::Relaxed) > 0;
        if !spent {
            self.left.fetch_add(1, Ordering::Relaxed);
        }
        spent
    }

    /// Gives one back, unless all are there.
    fn refund(&self) {
        if self.left.fetch_add(1, Ordering::Relaxed) >= self.budget {
            self.left.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Default for Retry {
    /// At most 10 attempts within 10 s, pauses from 1 ms up to 100 ms, locked after the first
    /// conflict, and a budget of 1000.
    fn default() -> Self {
        Self {
            attempts: 10,
            base: Duration::from_millis(1),
            longest: Duration::from_millis(100),
            deadline: Duration::from_secs(10),
            lock_after: 1,
            shared: Shared::new(1000),
        }
    }
}

impl Retry {
    /// The maximum number of attempts, 1 to 1000.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// The first pause at most, and the longest.
    #[must_use]
    pub fn pause(mut self, base: Duration, longest: Duration) -> Self {
        (self.base, self.longest) = (base, longest);
        self
    }

    /// No attempt begins later than this after the start of the work, not even the first one, which may
    /// have to wait for other writers of this process; at most 1 h.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// The number of conflicts of a piece of work after which its attempts lock the rows that they
    /// read.
    #[must_use]
    pub fn lock_after(mut self, conflicts: u32) -> Self {
        self.lock_after = conflicts;
        self
    }

    /// The budget of repetitions: each repetition takes one from it, each success gives one back. It
    /// ends retry storms in a program that cannot succeed. Clones that are made afterwards share it.
    #[must_use]
    pub fn budget(mut self, budget: u32) -> Self {
        self.shared = Shared::new(budget);
        self
    }

    /// Begins work on the rows with these keys, to be repeated in a loop:
    ///
    /// ```
    /// # use lockapi::versioned::{BoxError, Outcome, Retry};
    /// # async fn read(_locked: bool) -> Result<(i64, i64), BoxError> { Ok((0, 1)) }
    /// # async fn write(_seen: i64, _value: i64) -> Result<Outcome, BoxError> { Ok(Outcome::Updated(2)) }
    /// async fn increment(retry: &Retry) -> Result<i64, BoxError> {
    ///     let mut attempts = retry.begin(&["counter/7"])?;
    ///     loop {
    ///         let attempt = attempts.next().await?;
    ///         let (value, version) = read(attempt.locks()).await?;
    ///         match write(version, value + 1).await?.updated() {
    ///             Ok(_) => return Ok(attempts.succeed(value + 1)),
    ///             Err(conflict) => attempts.again(conflict, true)?,
    ///         }
    ///     }
    /// }
    /// # lockapi::blocking::block_on(increment(&Retry::default())).unwrap();
    /// ```
    ///
    /// # Errors
    /// `Invalid` when what was set is outside of its limits.
    pub fn begin(&self, keys: &[&str]) -> Result<Attempts> {
        let invalid = |message| Err(Error::new(ErrorKind::Invalid, "retry", message));
        if self.attempts == 0 || self.attempts > MOST_ATTEMPTS {
            let attempts = self.attempts;
            return invalid(format!(
                "{attempts} attempts; allowed are 1 to {MOST_ATTEMPTS}"
            ));
        }
        if self.base > self.longest || self.longest > LONGEST || self.deadline > LONGEST {
            return invalid(format!(
                "pauses of {:?} to {:?} within {:?}; allowed are at most 1 hour each, and a base that is at most the longest pause",
                self.base, self.longest, self.deadline
            ));
        }
        Ok(Attempts::new(self, keys))
    }

    /// Runs `work`, and repeats it after conflicts, each time from the start: it has to read again.
    /// `is_conflict` decides which errors are conflicts; see [`is_conflict`](super::is_conflict).
    ///
    /// # Cancel safety
    /// When dropped, the attempt that is under way is.
    ///
    /// # Errors
    /// The error of `work` if it is no conflict, or of the last attempt; `TimedOut` when other writers
    /// of this process kept the same rows until the deadline; `Invalid` when a setting is outside of
    /// its limits.
    pub async fn run<T, W>(
        &self,
        keys: &[&str],
        is_conflict: impl Fn(&(dyn StdError + 'static)) -> bool,
        mut work: impl FnMut(Attempt) -> W,
    ) -> Result<T, BoxError>
    where
        W: Future<Output = Result<T, BoxError>>,
    {
        let mut attempts = self.begin(keys)?;
        loop {
            let attempt = attempts.next().await?;
            match work(attempt).await {
                Ok(value) => return Ok(attempts.succeed(value)),
                Err(error) => {
                    let again = is_conflict(&*error);
                    attempts.again(error, again)?;
                }
            }
        }
    }

    /// As [`run`](Self::run), but blocks the calling thread.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn run_blocking<T>(
        &self,
        keys: &[&str],
        is_conflict: impl Fn(&(dyn StdError + 'static)) -> bool,
        mut work: impl FnMut(Attempt) -> Result<T, BoxError>,
    ) -> Result<T, BoxError> {
        let mut attempts = self.begin(keys)?;
        loop {
            let attempt = attempts.next_blocking()?;
            match work(attempt) {
                Ok(value) => return Ok(attempts.succeed(value)),
                Err(error) => {
                    let again = is_conflict(&*error);
                    attempts.again(error, again)?;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
