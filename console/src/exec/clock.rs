//! A time that processes of this machine agree on.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A point on the machine's monotonic clock, in microseconds. On Linux it goes on while the machine sleeps, so that a
/// hold which has expired meanwhile is seen to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Time(u64);

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

impl Time {
    pub(super) fn now() -> Self {
        let now = clock_gettime(CLOCK);
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        let nanos = u64::try_from(now.tv_nsec).unwrap_or_default();
        Self(
            seconds
                .saturating_mul(1_000_000)
                .saturating_add(nanos / 1000),
        )
    }

    /// A point for tests, so far after the beginning.
    #[cfg(test)]
    pub(super) fn at(since: Duration) -> Self {
        Self::at_zero().plus(since)
    }

    #[cfg(test)]
    fn at_zero() -> Self {
        Self(0)
    }

    pub(super) fn plus(self, time: Duration) -> Self {
        Self(self.0.saturating_add(micros(time)))
    }

    pub(super) fn minus(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(micros(time)))
    }

    /// How long it is until `later`; nothing if that has passed.
    pub(super) fn until(self, later: Self) -> Duration {
        Duration::from_micros(later.0.saturating_sub(self.0))
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Time {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Self)
    }
}
