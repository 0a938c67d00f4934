//! The permits of a rate.

use lockapi::suite::queue::LimitRow;

/// What a rate allows, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    burst: i64,
    step: i64,
}

impl Rate {
    pub(super) fn of(row: LimitRow) -> Option<Self> {
        let (burst, step) = (row.burst?, row.step?);
        Some(Self { burst, step })
    }

    fn depth(self) -> i64 {
        self.burst * self.step
    }
}

/// A clock for judging rates, in nanoseconds. The server's clock may be set, which gives permits if it is set ahead and
/// none if it is set back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moment {
    /// With all times by which it was set ahead: no more has passed for a rate.
    pub(super) longest: i64,
    /// Without them: no less has, unless it was set back.
    pub(super) shortest: i64,
}

/// What was taken of a rate that may be changed.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    rate: Option<Rate>,
    /// When permits were taken since the rate is this one.
    taken: Vec<i64>,
    /// What was owed at the least when the last was taken, as far as every rate since then can owe so much.
    least: (i64, i64),
    /// What was owed at the most then.
    most: (i64, i64),
    /// Whether the clock was set back, and nobody has looked since then.
    stalled: bool,
}

impl Meter {
    /// The rate is this one from now on.
    pub(super) fn set(&mut self, rate: Option<Rate>) {
        if self.rate == rate {
            return;
        }
        self.rate = rate;
        self.taken.clear();
        self.least.0 = self.least.0.min(rate.map_or(0, Rate::depth));
    }

    /// So many permits are taken; says what is wrong with that.
    pub(super) fn take(&mut self, permits: i64, at: Moment) -> Option<String> {
        let rate = self.rate?;
        self.looked(at);
        let owed = self.owed_at_most(rate, at) + permits * rate.step;
        self.most = (owed, at.shortest);
        let owed = (self.least.0 - (at.longest - self.least.1)).max(0) + permits * rate.step;
        self.least = (owed, at.longest);
        for _ in 0..permits {
            self.taken.push(at.longest);
        }
        if owed > rate.depth() {
            let over = owed - rate.depth();
            return Some(format!(
                "{permits} permits of {rate:?} come {over} ns early"
            ));
        }
        // By definition: in each window that ends now.
        let mut windows = (1..).zip(self.taken.iter().rev());
        let full = windows
            .find(|(count, from)| *count > rate.burst + (at.longest - **from) / rate.step)
            .map(|(count, from)| (count, at.longest - from));
        full.map(|(count, window)| format!("{count} permits of {rate:?} in {window} ns"))
    }

    fn owed_at_most(&self, rate: Rate, at: Moment) -> i64 {
        let (owed, since) = self.most;
        (owed.min(rate.depth()) - (at.shortest - since)).max(0)
    }

    /// Whether there certainly is a permit.
    pub(super) fn has_permit(&self, at: Moment) -> bool {
        let Some(rate) = self.rate else {
            return true;
        };
        !self.stalled && self.owed_at_most(rate, at) <= (rate.burst - 1) * rate.step
    }

    /// The clock was set back: until somebody looks, time gives no permits.
    pub(super) fn stall(&mut self) {
        self.stalled = true;
    }

    /// Somebody has looked.
    pub(super) fn looked(&mut self, at: Moment) {
        if std::mem::take(&mut self.stalled) {
            self.most = (i64::MAX, at.shortest);
        }
    }

    /// What was taken last may have been forgotten.
    pub(super) fn forget(&mut self, at: Moment) {
        self.taken.clear();
        self.least = (0, at.longest);
        self.most = (i64::MAX, at.shortest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { burst: 2, step: 10 };

    fn at(longest: i64) -> Moment {
        Moment {
            longest,
            shortest: longest,
        }
    }

    fn metered() -> Meter {
        let mut meter = Meter::default();
        meter.set(Some(RATE));
        meter
    }

    #[test]
    fn a_permit_too_many_in_a_window_is_seen() {
        let mut meter = metered();
        assert_eq!(meter.take(2, at(0)), None);
        assert!(!meter.has_permit(at(9)));
        assert!(meter.clone().take(1, at(9)).is_some());
        assert!(meter.has_permit(at(10)));
        assert_eq!(meter.take(1, at(10)), None);
        assert!(meter.take(1, at(19)).is_some());
    }

    #[test]
    fn what_was_taken_counts_for_another_rate_as_far_as_that_can_owe_it() {
        let mut meter = metered();
        assert_eq!(meter.take(2, at(0)), None);
        let slow = Rate { burst: 1, step: 15 };
        meter.set(Some(slow));
        assert!(meter.clone().take(1, at(14)).is_some());
        assert_eq!(meter.take(1, at(15)), None);
        meter.set(Some(RATE));
        assert!(meter.clone().take(2, at(19)).is_some());
        assert_eq!(meter.take(1, at(20)), None);
    }

    #[test]
    fn a_clock_that_is_set_gives_permits_forwards_alone() {
        let mut meter = metered();
        assert_eq!(meter.take(2, at(0)), None);
        let ahead = Moment {
            longest: 100,
            shortest: 1,
        };
        assert!(!meter.has_permit(ahead), "it may have been set back before");
        assert_eq!(meter.take(2, ahead), None);
        meter.stall();
        let later = Moment {
            longest: 200,
            shortest: 101,
        };
        assert!(!meter.has_permit(later), "nobody has looked");
        meter.looked(later);
        assert!(!meter.has_permit(later));
    }
}
