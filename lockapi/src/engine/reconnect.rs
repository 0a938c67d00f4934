//! The pause after a connection that could not be opened.

use std::sync::PoisonError;
use std::time::Duration;

use super::clock::Time;
use super::timer::Timer;
use crate::sync::{Mutex, MutexGuard};

/// The first and the longest pause.
const PAUSES: (Duration, Duration) = (Duration::from_millis(25), Duration::from_millis(250));
/// A failure later than this after a pause starts again with the first pause.
const FORGOTTEN: Duration = Duration::from_secs(1);

/// When a connection may be opened. Callers that try again at once do not make a connection each.
#[derive(Debug, Default)]
pub(crate) struct Reconnect(Mutex<Option<Pause>>);

#[derive(Clone, Copy, Debug)]
struct Pause {
    ends: Time,
    length: Duration,
}

impl Reconnect {
    /// Waits until a connection may be opened.
    pub(crate) async fn pause(&self, timer: &Timer) {
        let left = self.left(timer.now());
        if !left.is_zero() {
            timer.sleep(left).await;
        }
    }

    fn left(&self, now: Time) -> Duration {
        let pause = *self.lock();
        pause.map_or(Duration::ZERO, |pause| pause.ends.saturating_sub(now))
    }

    /// A connection could not be opened, or not be used.
    pub(crate) fn failed(&self, now: Time) {
        let mut pause = self.lock();
        let former = pause.filter(|former| now < former.ends + FORGOTTEN);
        let length = former.map_or(PAUSES.0, |former| (former.length * 2).min(PAUSES.1));
        // Processes that lost one server do not come back at the same time.
        let jittered = length.mul_f64(0.5 + fastrand::f64() / 2.0);
        let ends = now + jittered;
        *pause = Some(Pause { ends, length });
    }

    fn lock(&self) -> MutexGuard<'_, Option<Pause>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_the_longest_and_are_forgotten() {
        let reconnect = Reconnect::default();
        let mut now = Time::from_secs(1);
        assert_eq!(reconnect.left(now), Duration::ZERO);
        for nth in 0..8 {
            reconnect.failed(now);
            let length = (PAUSES.0 * 2_u32.pow(nth)).min(PAUSES.1);
            let left = reconnect.left(now);
            assert!(left >= length / 2 && left <= length, "{nth}: {left:?}");
            now += length;
            assert_eq!(reconnect.left(now), Duration::ZERO);
        }
        reconnect.failed(now + FORGOTTEN);
        assert!(reconnect.left(now + FORGOTTEN) <= PAUSES.0);
    }

    #[test]
    fn processes_that_lost_one_server_come_back_at_different_times() {
        let pauses: std::collections::BTreeSet<_> = (0..32)
            .map(|_| {
                let reconnect = Reconnect::default();
                reconnect.failed(Time::ZERO);
                reconnect.left(Time::ZERO)
            })
            .collect();
        let (first, last) = (pauses.first().unwrap(), pauses.last().unwrap());
        assert!(*last > *first + PAUSES.0 / 8, "{first:?} to {last:?}");
    }
}
