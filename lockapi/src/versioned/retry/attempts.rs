//! The attempts at one piece of work: their pauses, turns and end.

use std::time::{Duration, Instant};

use super::super::contention::{WriterLocks, sleep};
use super::Retry;
use crate::blocking::block_on;
use crate::error::{Error, ErrorKind, Result};

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
    turn: WriterLocks,
    /// The pause before the next attempt.
    pause: Duration,
}

impl Attempts {
    pub(super) fn new(retry: &Retry, keys: &[&str]) -> Self {
        let mut keys: Vec<_> = keys.iter().map(|&key| key.to_owned()).collect();
        keys.sort_unstable();
        keys.dedup();
        Self {
            retry: retry.clone(),
            keys,
            until: Instant::now() + retry.deadline,
            number: 0,
            conflicts: 0,
            turn: WriterLocks::default(),
            pause: Duration::ZERO,
        }
    }

    /// Waits out the pause and for the turn, and begins the next attempt.
    ///
    /// # Errors
    /// `TimedOut` when the turn has not come by the deadline.
    pub async fn next(&mut self) -> Result<Attempt> {
        if !self.pause.is_zero() {
            sleep(self.pause).await;
        }
        self.turn = WriterLocks::default();
        let queued = self.retry.shared.contention.queue(&self.keys, self.until);
        let turn = queued.await;
        self.attempt(turn)
    }

    /// As [`next`](Self::next), on a thread that may block.
    ///
    /// # Errors
    /// As for [`next`](Self::next).
    pub fn next_blocking(&mut self) -> Result<Attempt> {
        std::thread::sleep(self.pause);
        self.turn = WriterLocks::default();
        let queued = self.retry.shared.contention.queue(&self.keys, self.until);
        let turn = block_on(queued);
        self.attempt(turn)
    }

    /// Ends an attempt that failed: `Ok` when the next one may begin.
    ///
    /// # Errors
    /// The error itself, when it is no conflict, and when attempts, time or budget are used up.
    pub fn again<E>(&mut self, error: E, is_conflict: bool) -> Result<(), E> {
        self.turn = WriterLocks::default();
        if !is_conflict {
            return Err(error);
        }
        self.conflicts += 1;
        self.retry.shared.contention.mark_contended(&self.keys);
        self.pause = self.pause();
        // Who would begin after the deadline does not wait for it.
        let late = Instant::now() + self.pause >= self.until;
        if self.number >= self.retry.attempts || late {
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
        self.turn = WriterLocks::default();
        self.retry.shared.refund();
        value
    }

    fn attempt(&mut self, turn: Option<WriterLocks>) -> Result<Attempt> {
        let Some(turn) = turn else {
            let deadline = self.retry.deadline;
            let message =
                format!("other tasks of this process were writing the same rows for {deadline:?}");
            return Err(Error::new(ErrorKind::TimedOut, "retry", message));
        };
        self.turn = turn;
        self.number += 1;
        Ok(Attempt {
            number: self.number,
            locks: self.turn.hot || self.conflicts >= self.retry.lock_after,
        })
    }

    /// Random, so that those who met do not meet again.
    fn pause(&self) -> Duration {
        if self.conflicts == 0 {
            return Duration::ZERO;
        }
        let doubled = 1u32 << (self.conflicts - 1).min(20);
        let most = self.retry.base.saturating_mul(doubled);
        let most = most.min(self.retry.longest);
        most.mul_f64(fastrand::f64())
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
    /// work may have to be done again.
    #[must_use]
    pub fn locks(self) -> bool {
        self.locks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
