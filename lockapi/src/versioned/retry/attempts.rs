//! The attempts at one piece of work: their pauses, turns and end.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tokio::sync::OwnedMutexGuard;

use super::Retry;
use crate::blocking::block_on;
use crate::engine::{Clock, Keeper};

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
            turn: Vec::new(),
        }
    }

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
    pub fn again<E>(&mut self, error: E, is_conflict: bool) -> Result<(), E> {
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
