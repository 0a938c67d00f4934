//! Quotas: how many permits are available in which time.

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

/// The most permits of a quota, of a burst, and of one call.
pub const MAX_PERMITS: u64 = 1_000_000_000;
/// The longest period of a quota: a leap year.
pub const MAX_PERIOD: Duration = Duration::from_secs(366 * 24 * 3600);
/// The shortest time between two permits.
pub const MIN_INTERVAL: Duration = Duration::from_nanos(100);
/// The longest time in which a burst is replenished: ten leap years.
pub(crate) const MAX_DEPTH: Duration = Duration::from_secs(3660 * 24 * 3600);
const MIN_PERIOD: Duration = Duration::from_millis(1);

/// How permits come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// The generic cell rate algorithm, a token bucket without a process that fills it: one permit is
    /// replenished in each interval of `period / permits`, up to the burst. In any time `t` no more
    /// than `burst + rate * t` permits are taken.
    ///
    /// Source: ITU-T I.371, annex A. The state is one number, the theoretical arrival time.
    Gcra,
    /// All permits are replenished when the window ends. A window starts with the first permit that is
    /// taken after the previous window has ended. At the boundary of two windows twice the permits can
    /// be taken in a short time.
    FixedWindow,
    /// Counts the permits of the window so far, and of the previous window the part that a window
    /// ending now would overlap. It is an approximation: it assumes that the permits of the
    /// previous window were taken evenly. It counts in steps of a millionth of the window, rounded
    /// against the caller. Steps are whole nanoseconds: in a window of a few milliseconds that is not a
    /// whole number of them, up to half of the previous window counts too much.
    SlidingWindow,
}

/// How many permits there are in which time.
///
/// ```
/// use lockapi::limit::Quota;
///
/// let quota = Quota::per_minute(100).burst(20);
/// assert_eq!(quota.limit(), 20); // at once; then one every 600 ms
/// ```
///
/// # Limits
/// 1 to 1,000,000,000 permits in 1 ms to 366 days, at most 10 million a second; a burst that is
/// replenished within ten years. The interval between two permits is rounded up to nanoseconds: a rate
/// of 7 a second is too strict by 10⁻⁹, one of 10 million by at most 1 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    permits: u64,
    period: Duration,
    burst: Option<u64>,
    algorithm: Algorithm,
}

impl Quota {
    /// This number of permits in `period`, and as many at once.
    #[must_use]
    pub const fn new(permits: u64, period: Duration) -> Self {
        Self {
            permits,
            period,
            burst: None,
            algorithm: Algorithm::Gcra,
        }
    }

    /// This number of permits a second.
    #[must_use]
    pub const fn per_second(permits: u64) -> Self {
        Self::new(permits, Duration::from_secs(1))
    }

    /// This number of permits a minute.
    #[must_use]
    pub const fn per_minute(permits: u64) -> Self {
        Self::new(permits, Duration::from_secs(60))
    }

    /// This number of permits an hour.
    #[must_use]
    pub const fn per_hour(permits: u64) -> Self {
        Self::new(permits, Duration::from_secs(3600))
    }

    /// This number of permits in 24 hours.
    #[must_use]
    pub const fn per_day(permits: u64) -> Self {
        Self::new(permits, Duration::from_secs(24 * 3600))
    }

    /// How many permits can be taken at once after a time without calls; by default the permits of a
    /// period. Windows have no burst.
    #[must_use]
    pub const fn burst(mut self, permits: u64) -> Self {
        self.burst = Some(permits);
        self
    }

    /// Counts in [fixed windows](Algorithm::FixedWindow) of the period.
    #[must_use]
    pub const fn fixed_window(mut self) -> Self {
        self.algorithm = Algorithm::FixedWindow;
        self
    }

    /// Counts in a [sliding window](Algorithm::SlidingWindow) of the period.
    #[must_use]
    pub const fn sliding_window(mut self) -> Self {
        self.algorithm = Algorithm::SlidingWindow;
        self
    }

    /// How permits come back.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The most permits that can be taken at once.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        match self.burst {
            Some(burst) => burst,
            None => self.permits,
        }
    }

    /// The permits of a period.
    #[must_use]
    pub const fn permits(&self) -> u64 {
        self.permits
    }

    /// The period.
    #[must_use]
    pub const fn period(&self) -> Duration {
        self.period
    }

    /// Checks the limits.
    ///
    /// # Errors
    /// `Invalid`, with what is allowed.
    pub fn check(&self) -> Result<()> {
        let invalid = |message| Err(Error::new(ErrorKind::Invalid, "quota", message));
        for (what, permits) in [("quota", self.permits), ("burst", self.limit())] {
            if permits == 0 || permits > MAX_PERMITS {
                return invalid(format!(
                    "a {what} of {permits} permits; allowed are 1 to {MAX_PERMITS}; to refuse everything, block the key"
                ));
            }
        }
        if self.period < MIN_PERIOD || self.period > MAX_PERIOD {
            return invalid(format!(
                "a period of {:?}; allowed are {MIN_PERIOD:?} to 366 days",
                self.period
            ));
        }
        if self.algorithm != Algorithm::Gcra {
            if self.burst.is_some() {
                return invalid(
                    "a window with a burst; allowed is no burst, because all permits of a window may be taken at once"
                        .to_owned(),
                );
            }
            return Ok(());
        }
        if self.period.as_nanos() < u128::from(self.permits) * MIN_INTERVAL.as_nanos() {
            return invalid(format!(
                "{} permits in {:?}; allowed are at most one every {MIN_INTERVAL:?}",
                self.permits, self.period
            ));
        }
        let depth = u128::from(self.interval().unsigned_abs()) * u128::from(self.limit());
        if depth > MAX_DEPTH.as_nanos() {
            return invalid(format!(
                "a burst of {} permits, which takes more than 10 years to refill; allowed are at most 10 years",
                self.limit()
            ));
        }
        Ok(())
    }

    /// Checks what a call costs.
    pub(crate) fn check_cost(&self, cost: u64) -> Result<()> {
        if cost == 0 || cost > self.limit() {
            let message = format!(
                "a cost of {cost} permits; allowed are 1 to {}, the most that are ever available at once",
                self.limit()
            );
            return Err(Error::new(ErrorKind::Invalid, "check", message));
        }
        Ok(())
    }

    /// The time between two permits, in nanoseconds, rounded up; only after [`check`](Self::check).
    pub(crate) fn interval(&self) -> i64 {
        let interval = self.period.as_nanos().div_ceil(u128::from(self.permits));
        i64::try_from(interval).unwrap_or(i64::MAX)
    }

    /// What this number of permits costs in the unit of the state: nanoseconds, or permits of a
    /// window.
    pub(crate) fn price(&self, permits: u64) -> i64 {
        let permits = i64::try_from(permits).unwrap_or(i64::MAX);
        match self.algorithm {
            Algorithm::Gcra => permits.saturating_mul(self.interval()),
            Algorithm::FixedWindow | Algorithm::SlidingWindow => permits,
        }
    }

    pub(crate) fn is_sliding(&self) -> bool {
        self.algorithm == Algorithm::SlidingWindow
    }

    /// The length of the window in nanoseconds; 0 without windows.
    pub(crate) fn window(&self) -> i64 {
        match self.algorithm {
            Algorithm::Gcra => 0,
            Algorithm::FixedWindow | Algorithm::SlidingWindow => {
                i64::try_from(self.period.as_nanos()).unwrap_or(i64::MAX)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_quotas_are_invalid() {
        let absurd = [
            Quota::per_second(0),
            Quota::per_second(u64::MAX),
            Quota::per_second(1).burst(0),
            Quota::per_second(1).burst(u64::MAX),
            Quota::new(1, Duration::ZERO),
            Quota::new(1, Duration::MAX),
            Quota::new(20_000, Duration::from_millis(1)),
            Quota::new(1, MAX_PERIOD).burst(11),
            Quota::per_second(1).burst(2).fixed_window(),
            Quota::per_second(0).sliding_window(),
        ];
        for quota in absurd {
            let error = quota.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{quota:?}");
        }
        Quota::new(MAX_PERMITS, MAX_PERIOD).check().unwrap();
        Quota::per_second(10_000_000).check().unwrap();
    }

    #[test]
    fn the_interval_is_rounded_against_the_caller() {
        assert_eq!(Quota::per_second(7).interval(), 142_857_143);
        assert_eq!(Quota::per_minute(100).interval(), 600_000_000);
    }
}
