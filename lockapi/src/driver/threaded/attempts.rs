//! Attempts to connect with a driver that blocks: each that hangs keeps a thread, for hours on a network that
//! lost the server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::lock;
use crate::sync::{Mutex, MutexGuard};

/// An attempt that has not returned for so long hangs.
const HANGING: Duration = Duration::from_secs(4);

/// While some hang, the next one waits for an eighth of the time for which the first has been hanging, within
/// these bounds. So a server that comes back is soon found, and the number of attempts grows with the logarithm
/// of that time.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The attempts that have not returned.
#[derive(Clone, Default)]
pub(in crate::driver) struct Attempts(Arc<Mutex<Times>>);

#[derive(Default)]
struct Times {
    /// In the order in which they began.
    under_way: Vec<Instant>,
    last: Option<Instant>,
}

/// An attempt to connect, until the driver has returned.
pub(in crate::driver) struct Attempt {
    of: Attempts,
    began: Instant,
}

impl Attempts {
    /// Begins an attempt, unless `most` others hang. Answers the pause that has to be between two
    /// attempts if it has not passed yet; it is `least` in any case.
    pub(in crate::driver) fn begin(
        &self,
        now: Instant,
        most: usize,
        least: Duration,
    ) -> Result<Attempt, Duration> {
        let mut times = self.times();
        let age = |began: &Instant| now.saturating_duration_since(*began);
        let hanging = times.under_way.iter().filter(|began| age(began) > HANGING);
        let pause = match times.under_way.first() {
            Some(first) if hanging.count() >= most => (age(first) / 8).clamp(PAUSES.0, PAUSES.1),
            _ => least,
        };
        if times.last.is_some_and(|last| age(&last) < pause) {
            return Err(pause);
        }
        times.last = Some(now);
        times.under_way.push(now);
        drop(times);
        Ok(Attempt {
            of: self.clone(),
            began: now,
        })
    }

    /// For how long the first has been under way.
    pub(in crate::driver) fn age(&self, now: Instant) -> Option<Duration> {
        let times = self.times();
        let first = times.under_way.first()?;
        Some(now.saturating_duration_since(*first))
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        lock(&self.0)
    }
}

impl Attempt {
    /// The server has answered: what began earlier hangs for a reason of its own.
    pub(in crate::driver) fn answered(&self) {
        let mut times = self.of.times();
        times.under_way.retain(|began| *began >= self.began);
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let mut times = self.of.times();
        if let Some(at) = times.under_way.iter().position(|it| *it == self.began) {
            times.under_way.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn attempts_that_hang_make_others_rare_until_one_is_answered() {
        let attempts = Attempts::default();
        let start = Instant::now();
        let begin = |after: Duration| attempts.begin(start + after, 16, Duration::ZERO);
        let mut all: Vec<_> = (0..64).map(|_| begin(Duration::ZERO).unwrap()).collect();
        all.push(begin(2 * SECOND).unwrap());
        let mut tried = 5 * SECOND;
        all.push(begin(tried).unwrap());
        assert_eq!(begin(tried + SECOND / 2).err(), Some(SECOND));
        for pause in [1, 2, 10, 60, 60] {
            // It has been hanging for eight times as long.
            let now = tried.max(8 * pause * SECOND) + SECOND;
            all.push(begin(now).unwrap());
            tried = now + pause * SECOND;
            assert!(begin(tried.saturating_sub(SECOND / 2)).is_err(), "{pause}");
        }
        tried += 8 * SECOND;
        let last = begin(tried).unwrap();
        last.answered();
        for _ in 0..64 {
            all.push(begin(tried).unwrap());
        }
        drop((all, last));
        assert_eq!(attempts.age(start + tried), None);
    }

    #[test]
    fn there_is_a_least_pause() {
        let attempts = Attempts::default();
        let start = Instant::now();
        let begin = |after: Duration| attempts.begin(start + after, 16, SECOND).is_ok();
        assert!(begin(Duration::ZERO));
        assert!(!begin(SECOND * 9 / 10));
        assert!(begin(SECOND));
    }
}
