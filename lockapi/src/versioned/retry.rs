//! Doing work again that met a conflict.

use std::error::Error as StdError;
use std::future::Future;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::OwnedMutexGuard;

use super::BoxError;
use super::contention::Contention;
use crate::blocking::block_on;
use crate::engine::{Clock, Keeper};
use crate::error::{Error, ErrorKind, Result};

const MOST_ATTEMPTS: u32 = 1000;
const LONGEST: Duration = Duration::from_hours(1);

/// How work is done again that met a conflict: how often, with which pauses, and until when.
///
/// Keep one for the program: what is learnt about contended rows, and the budget, are shared by its
/// clones. The pause before the n-th repetition is random, up to the base times 2^n, and no longer
/// than the longest (full jitter).
///
/// A row is hot for a second after a conflict on it, or after a writer had to wait for another of
/// this process. On hot rows writers of one process take turns, so that they do not meet at the
/// server, and are told to [lock](Attempt::locks) what they read, so that a writer of another process
/// cannot come in between. Rows are told apart by the keys that are given with the work.
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
    /// How often work is done at most, 1 to 1000.
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

    /// No attempt begins later than this after the first, at most 1 h.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// After so many conflicts of one piece of work its attempts are to lock what they read.
    #[must_use]
    pub fn lock_after(mut self, conflicts: u32) -> Self {
        self.lock_after = conflicts;
        self
    }

    /// How many repetitions there may be that are not made up for by success: each repetition takes
    /// one from the budget, each success gives one back. It ends storms of repetitions in a program
    /// that cannot succeed. Clones from here on share it.
    #[must_use]
    pub fn budget(mut self, budget: u32) -> Self {
        self.shared = Shared::new(budget);
        self
    }

    /// Begins work on rows that are told apart by these keys, to be repeated in a loop:
    ///
    /// ```
    /// # use lockapi::versioned::{BoxError, Outcome, Retry};
    /// # async fn read(_locked: bool) -> Result<(i64, i64), BoxError> { Ok((0, 1)) }
    /// # async fn write(_seen: i64, _value: i64) -> Result<Outcome, BoxError> { Ok(Outcome::Updated(2)) }
    /// async fn increment(retry: &Retry) -> Result<i64, BoxError> {
    ///     let mut attempts = retry.begin(&["counter/7"])?;
    ///     loop {
    ///         let attempt = attempts.next().await;
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
                "pauses of {:?} to {:?} within {:?}; allowed is 1 h, and no base above the longest",
                self.base, self.longest, self.deadline
            ));
        }
        let mut keys: Vec<_> = keys.iter().map(|&key| key.to_owned()).collect();
        keys.sort_unstable();
        keys.dedup();
        Ok(Attempts {
            retry: self.clone(),
            keys,
            until: Instant::now() + self.deadline,
            number: 0,
            conflicts: 0,
            turn: Vec::new(),
        })
    }

    /// Does `work`, and does it again after conflicts, each time from the start: it has to read anew.
    /// `is_conflict` tells which errors are conflicts; see [`is_conflict`](super::is_conflict).
    ///
    /// # Cancel safety
    /// When dropped, the attempt that is under way is.
    ///
    /// # Errors
    /// The error of `work` if it is no conflict, or of the last attempt; `Invalid` when what was
    /// set is outside of its limits.
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
            let attempt = attempts.next().await;
            match work(attempt).await {
                Ok(value) => return Ok(attempts.succeed(value)),
                Err(error) => {
                    let again = is_conflict(&*error);
                    attempts.again(error, again)?;
                }
            }
        }
    }

    /// As [`run`](Self::run), on a thread that may block.
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
            let attempt = attempts.next_blocking();
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

/// A piece of work that is repeated; see [`Retry::begin`]. While an attempt is under way, others of
/// this process on the same hot rows wait.
#[derive(Debug)]
pub struct Attempts {
    retry: Retry,
    keys: Vec<String>,
    until: Instant,
    number: u32,
    conflicts: u32,
    /// The turn of the attempt that is under way.
    turn: Vec<OwnedMutexGuard<()>>,
}

impl Attempts {
    /// Waits out the pause and for the turn, and begins the next attempt.
    pub async fn next(&mut self) -> Attempt {
        let pause = self.pause();
        if !pause.is_zero() {
            sleep(pause).await;
        }
        self.turn.clear();
        self.turn = self.retry.shared.contention.queue(&self.keys).await;
        self.attempt()
    }

    /// As [`next`](Self::next), on a thread that may block.
    pub fn next_blocking(&mut self) -> Attempt {
        std::thread::sleep(self.pause());
        self.turn.clear();
        self.turn = block_on(self.retry.shared.contention.queue(&self.keys));
        self.attempt()
    }

    /// Ends an attempt that failed: `Ok` when the next one may begin.
    ///
    /// # Errors
    /// The error itself, when it is no conflict, and when attempts, time or budget are used up.
    pub fn again<E>(&mut self, error: E, is_conflict: bool) -> std::result::Result<(), E> {
        self.turn.clear();
        if !is_conflict {
            return Err(error);
        }
        self.conflicts += 1;
        self.retry.shared.contention.heat(&self.keys);
        if self.number >= self.retry.attempts || Instant::now() >= self.until {
            return Err(error);
        }
        if self.retry.shared.spend() {
            Ok(())
        } else {
            Err(error)
        }
    }

    /// Ends the work with its value.
    pub fn succeed<T>(mut self, value: T) -> T {
        self.turn.clear();
        self.retry.shared.refund();
        value
    }

    fn attempt(&mut self) -> Attempt {
        self.number += 1;
        Attempt {
            number: self.number,
            locks: !self.turn.is_empty() || self.conflicts >= self.retry.lock_after,
        }
    }

    /// Random, so that those who met do not meet again, and within the deadline.
    fn pause(&self) -> Duration {
        if self.conflicts == 0 {
            return Duration::ZERO;
        }
        let doubled = 1u32 << (self.conflicts - 1).min(20);
        let most = self.retry.base.saturating_mul(doubled);
        let most = most.min(self.retry.longest);
        let left = self.until.saturating_duration_since(Instant::now());
        most.mul_f64(fastrand::f64()).min(left)
    }
}

/// One attempt at a piece of work.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    number: u32,
    locks: bool,
}

impl Attempt {
    /// The how-manieth it is, from 1 on.
    #[must_use]
    pub fn number(self) -> u32 {
        self.number
    }

    /// Whether to read with `FOR NO KEY UPDATE`: others write the same rows, and without a lock the
    /// work may be in vain again.
    #[must_use]
    pub fn locks(self) -> bool {
        self.locks
    }
}

/// Without a runtime; one thread of the process serves all pauses.
async fn sleep(pause: Duration) {
    static KEEPER: OnceLock<Option<Keeper>> = OnceLock::new();
    let keeper = KEEPER.get_or_init(|| Keeper::start(&Clock::real()).ok());
    match keeper {
        Some(keeper) => keeper.sleep(pause).await,
        // No thread can be started: a short pause does less harm than none.
        None => std::thread::sleep(pause),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::super::Conflict;
    use super::*;

    const STALE: Conflict = Conflict { current: Some(2) };

    fn quick() -> Retry {
        Retry::default().pause(Duration::from_micros(10), Duration::from_micros(100))
    }

    fn failing(retry: &Retry, again: bool) -> u32 {
        let mut attempts = 0;
        let outcome: Result<(), BoxError> = retry.run_blocking(
            &["a"],
            |_| again,
            |attempt| {
                attempts += 1;
                assert_eq!(attempt.number(), attempts);
                Err(STALE.into())
            },
        );
        assert!(outcome.unwrap_err().is::<Conflict>());
        attempts
    }

    #[test]
    fn attempts_are_bounded() {
        assert_eq!(failing(&quick().attempts(7), true), 7);
        assert_eq!(failing(&quick().attempts(7), false), 1);
        assert_eq!(failing(&quick().deadline(Duration::ZERO), true), 1);
        let short = quick().budget(12);
        let taken = [(); 3].map(|()| failing(&short, true));
        assert_eq!(taken, [10, 4, 1], "nine repetitions, three, and none");
        let value: Result<u32, BoxError> = short.run_blocking(&["a"], |_| true, |_| Ok(1));
        assert_eq!(value.unwrap(), 1);
        assert_eq!(failing(&short, true), 2, "success gives one back");
    }

    #[test]
    fn pauses_grow_and_are_random() {
        let retry = Retry::default().pause(Duration::from_millis(8), Duration::from_millis(100));
        let mut attempts = retry.begin(&[]).unwrap();
        for (conflicts, most) in [
            (0, 0),
            (1, 8),
            (2, 16),
            (3, 32),
            (4, 64),
            (5, 100),
            (99, 100),
        ] {
            attempts.conflicts = conflicts;
            let most = Duration::from_millis(most);
            let pauses: Vec<_> = (0..200).map(|_| attempts.pause()).collect();
            assert!(pauses.iter().all(|pause| *pause <= most));
            if conflicts > 0 {
                assert!(pauses.iter().any(|pause| *pause < most / 3));
                assert!(pauses.iter().any(|pause| *pause > most / 2));
            }
        }
    }

    #[test]
    fn hot_rows_are_locked_and_taken_in_turns() {
        let retry = quick().lock_after(2);
        let mut locked = Vec::new();
        let outcome = retry.run_blocking(
            &["a"],
            |_| true,
            |attempt| {
                locked.push(attempt.locks());
                if attempt.number() < 3 {
                    Err(STALE.into())
                } else {
                    Ok(())
                }
            },
        );
        outcome.unwrap();
        assert_eq!(locked, [false, true, true], "the row is hot");
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let done = retry.run_blocking(
                        &["b", "a"],
                        |_| true,
                        |attempt| {
                            assert!(attempt.locks());
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                            std::thread::yield_now();
                            inside.fetch_sub(1, Ordering::SeqCst);
                            Ok(())
                        },
                    );
                    done.unwrap();
                });
            }
        });
        let cold = retry.begin(&["c"]).unwrap().next_blocking();
        assert!(!cold.locks());
    }

    #[test]
    fn what_is_outside_of_the_limits_is_refused() {
        let hours = Duration::from_hours(2);
        for retry in [
            quick().attempts(0),
            quick().attempts(1001),
            quick().deadline(hours),
            quick().pause(hours, hours),
            quick().pause(Duration::from_millis(2), Duration::from_millis(1)),
        ] {
            assert_eq!(retry.begin(&[]).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }
}
