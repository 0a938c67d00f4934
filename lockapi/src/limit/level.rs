//! What a row of the table holds, and how it is judged.
//!
//! The statements do the same arithmetic; a property test compares them with this.

use super::quota::{Algorithm, Quota};

/// A window is cut into so many parts.
const PARTS: i64 = 1_000_000;

/// The state of a key; times in nanoseconds of the server's clock.
///
/// Nothing but zeros is the state of a key that was never used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// The theoretical arrival time; of windows, when nothing of them counts any more.
    pub tat: i64,
    /// When the window started; 0 without one.
    pub started: i64,
    /// Permits taken in the window.
    pub used: i64,
    /// Permits taken in the window before.
    pub before: i64,
    /// Everything is refused until then.
    pub blocked_until: i64,
    /// What is reserved.
    pub reserved: Vec<Reserved>,
}

/// A reservation in a [`Level`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// Its random number.
    pub id: i64,
    /// When it was taken.
    pub at: i64,
    /// What it took: nanoseconds, or permits of a window.
    pub price: i64,
    /// The length of the window, or 0.
    pub window: i64,
    /// When it ends by itself.
    pub expires: i64,
}

impl Level {
    /// How many times `price` fits at `now`.
    pub(crate) fn fits(&self, quota: &Quota, price: i64, now: i64) -> i64 {
        if self.blocked_until > now {
            return 0;
        }
        (self.room(quota, now) / price).max(0)
    }

    /// What is left at `now`, in the unit of the state.
    pub(crate) fn room(&self, quota: &Quota, now: i64) -> i64 {
        let depth = quota.price(quota.limit());
        match quota.algorithm() {
            Algorithm::Gcra => now + depth - self.base(depth, now),
            Algorithm::FixedWindow => depth - self.rolled(quota, now).used,
            Algorithm::SlidingWindow => {
                let rolled = self.rolled(quota, now);
                depth - rolled.used - overlap(rolled.before, quota.window(), now - rolled.started)
            }
        }
    }

    /// Takes `price`, which has to fit.
    pub(crate) fn take(&mut self, quota: &Quota, price: i64, now: i64) {
        match quota.algorithm() {
            Algorithm::Gcra => self.tat = self.base(quota.price(quota.limit()), now) + price,
            Algorithm::FixedWindow | Algorithm::SlidingWindow => {
                *self = self.rolled(quota, now);
                self.used += price;
                self.tat = self.started + memory(quota);
            }
        }
    }

    /// A time beyond what the quota can have led to: the clock went back, or the quota was larger.
    pub(crate) fn is_beyond(&self, quota: &Quota, now: i64) -> bool {
        match quota.algorithm() {
            Algorithm::Gcra => self.tat > now + quota.price(quota.limit()),
            Algorithm::FixedWindow | Algorithm::SlidingWindow => false,
        }
    }

    /// Brings it back to what the quota can have led to.
    pub(crate) fn heal(&mut self, quota: &Quota, now: i64) {
        if self.is_beyond(quota, now) {
            self.tat = now + quota.price(quota.limit());
        }
    }

    /// Gives back what was taken at `at`, less what has flowed back since, so that what others
    /// have taken meanwhile stays taken.
    pub(crate) fn give_back(&mut self, price: i64, window: i64, at: i64, now: i64) {
        if window == 0 {
            self.tat -= (price - (now - at).max(0)).max(0);
        } else if self.started > 0 && at >= self.started {
            self.used = (self.used - price).max(0);
        } else if self.started > 0 && at >= self.started - window {
            self.before = (self.before - price).max(0);
        }
    }

    /// When the first reservation expires.
    pub(crate) fn due(&self) -> i64 {
        let expire = self.reserved.iter().map(|one| one.expires);
        expire.min().unwrap_or(i64::MAX)
    }

    /// Whether it means the same as no row.
    pub(crate) fn is_idle(&self, now: i64) -> bool {
        self.tat <= now && self.blocked_until <= now && self.reserved.is_empty()
    }

    /// Nanoseconds until `price` fits; 0 when it does.
    pub(crate) fn wait_for(&self, quota: &Quota, price: i64, now: i64) -> i64 {
        let blocked = (self.blocked_until - now).max(0);
        let depth = quota.price(quota.limit());
        let wait = match quota.algorithm() {
            Algorithm::Gcra => self.base(depth, now) + price - depth - now,
            Algorithm::FixedWindow => {
                let rolled = self.rolled(quota, now);
                if rolled.used + price <= depth {
                    0
                } else {
                    rolled.started + quota.window() - now
                }
            }
            Algorithm::SlidingWindow => {
                let rolled = self.rolled(quota, now);
                let (room, window) = (depth - price, quota.window());
                let at = if rolled.used <= room {
                    rolled.started + reaches(rolled.before, window, room - rolled.used)
                } else {
                    rolled.started + window + reaches(rolled.used, window, room)
                };
                at - now
            }
        };
        blocked.max(wait).max(0)
    }

    /// Nanoseconds until everything is there again.
    pub(crate) fn idle_in(&self, quota: &Quota, now: i64) -> i64 {
        let idle = match quota.algorithm() {
            Algorithm::Gcra => self.base(quota.price(quota.limit()), now) - now,
            Algorithm::FixedWindow | Algorithm::SlidingWindow => {
                let rolled = self.rolled(quota, now);
                if rolled.used > 0 {
                    rolled.started + memory(quota) - now
                } else if rolled.before > 0 {
                    rolled.started + quota.window() - now
                } else {
                    0
                }
            }
        };
        idle.max(self.blocked_until - now).max(0)
    }

    fn base(&self, depth: i64, now: i64) -> i64 {
        self.tat.min(now + depth).max(now)
    }

    /// With the window of `now`; one that starts in the future is of a clock that went back.
    fn rolled(&self, quota: &Quota, now: i64) -> Self {
        let (window, mut rolled) = (quota.window(), self.clone());
        let age = now - self.started;
        if self.started > 0 && (0..window).contains(&age) {
            return rolled;
        }
        let next = self.started > 0
            && quota.algorithm() == Algorithm::SlidingWindow
            && (window..2 * window).contains(&age);
        rolled.before = if next { self.used } else { 0 };
        rolled.started = if next { self.started + window } else { now };
        rolled.used = 0;
        rolled
    }
}

/// How long a window counts after it started.
fn memory(quota: &Quota) -> i64 {
    match quota.algorithm() {
        Algorithm::SlidingWindow => quota.window() * 2,
        Algorithm::Gcra | Algorithm::FixedWindow => quota.window(),
    }
}

/// What counts of the window before, when `age` of the next has passed; rounded up.
fn overlap(before: i64, window: i64, age: i64) -> i64 {
    let part = ((window - age).div_ceil_by(window / PARTS)).clamp(0, PARTS);
    (before * part).div_ceil_by(PARTS)
}

/// How much of the window has to have passed before no more than `room` counts of the one before.
fn reaches(before: i64, window: i64, room: i64) -> i64 {
    if before <= room {
        return 0;
    }
    window - room * PARTS / before * (window / PARTS)
}

trait DivCeil {
    fn div_ceil_by(self, by: Self) -> Self;
}

impl DivCeil for i64 {
    /// For numbers that are not negative.
    fn div_ceil_by(self, by: Self) -> Self {
        (self + by - 1) / by
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const START: i64 = 1_700_000_000_000_000_000;

    /// Quotas that do not divide evenly, and others.
    fn quotas() -> Vec<Quota> {
        let of =
            |permits, nanos, burst| Quota::new(permits, Duration::from_nanos(nanos)).burst(burst);
        let mut quotas = vec![
            of(7, 1_000_000_000, 7),
            of(1, 1_000_000, 1),
            of(3, 1_000_000, 5),
            of(10_000_000, 1_000_000_000, 1000),
            of(1, 3_600_000_000_000, 20),
        ];
        for permits in [1, 7, 1000] {
            let quota = Quota::new(permits, Duration::from_secs(61));
            quotas.extend([quota.fixed_window(), quota.sliding_window()]);
        }
        quotas
    }

    /// Takes at random times, and answers what was taken when.
    fn history(quota: &Quota, seed: u64) -> Vec<(i64, i64)> {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut level, mut now, mut taken) = (Level::default(), START, Vec::new());
        let scale = quota.window() / 4 + quota.interval();
        for _ in 0..300 {
            now += random.i64(0..=scale) / random.i64(1..=20);
            let cost = random.u64(1..=quota.limit().min(3));
            if level.fits(quota, quota.price(cost), now) > 0 {
                level.take(quota, quota.price(cost), now);
                taken.push((now, i64::try_from(cost).unwrap()));
            }
        }
        assert!(taken.len() > 5);
        taken
    }

    /// What was taken from `from` until just before `until`.
    fn within(history: &[(i64, i64)], from: i64, until: i64) -> i64 {
        let inside = history.iter().filter(|(at, _)| (from..until).contains(at));
        inside.map(|(_, cost)| cost).sum()
    }

    #[test]
    fn no_window_holds_more_than_burst_and_rate() {
        for quota in quotas().iter().filter(|quota| quota.window() == 0) {
            for seed in 0..20 {
                let history = history(quota, seed);
                for (n, (from, _)) in history.iter().enumerate() {
                    for (until, _) in &history[n..] {
                        let taken = i128::from(within(&history, *from, until + 1));
                        let flowed = i128::from(until - from) * i128::from(quota.permits());
                        let most = i128::from(quota.limit())
                            + flowed / i128::try_from(quota.period().as_nanos()).unwrap();
                        assert!(taken <= most, "{taken} of {most}, {quota:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn windows_keep_to_their_definitions() {
        for quota in quotas().iter().filter(|quota| quota.window() > 0) {
            let (window, limit) = (quota.window(), i64::try_from(quota.limit()).unwrap());
            for seed in 0..20 {
                let history = history(quota, seed);
                // Of any window, what a fixed one admits is at most that of two.
                for (from, _) in &history {
                    assert!(within(&history, *from, from + window) <= 2 * limit);
                }
                let mut start = START;
                for (at, _) in &history {
                    if *at >= start + window || start == START {
                        start = *at;
                        let fixed = quota.algorithm() == Algorithm::FixedWindow;
                        assert!(!fixed || within(&history, start, start + window) <= limit);
                    }
                }
            }
        }
    }

    #[test]
    fn retry_after_is_exact() {
        for quota in &quotas() {
            let mut random = fastrand::Rng::with_seed(7);
            let (mut level, mut now) = (Level::default(), START);
            for _ in 0..500 {
                let price = quota.price(random.u64(1..=quota.limit().min(3)));
                let wait = level.wait_for(quota, price, now);
                let fits = |at| level.fits(quota, price, at) > 0;
                assert_eq!(wait == 0, fits(now), "{quota:?}");
                assert!(wait == 0 || !fits(now + wait - 1), "{quota:?} {level:?}");
                assert!(fits(now + wait), "{quota:?} {level:?}");
                now += wait;
                level.take(quota, price, now);
                let idle = now + level.idle_in(quota, now);
                let depth = quota.price(quota.limit());
                assert_eq!(level.room(quota, idle), depth, "{quota:?}");
                now += random.i64(0..=quota.interval());
            }
        }
    }

    #[test]
    fn a_rest_gives_the_burst_and_no_more() {
        for quota in &quotas() {
            let mut level = Level::default();
            for now in [START, START + quota.window() * 3 + quota.interval() * 1000] {
                let one = quota.price(1);
                let mut taken = 0;
                while level.fits(quota, one, now) > 0 {
                    level.take(quota, one, now);
                    taken += 1;
                }
                assert_eq!(taken, quota.limit(), "{quota:?}");
            }
        }
    }

    #[test]
    fn a_refund_gives_back_no_more_than_was_lost() {
        let quota = Quota::per_second(10);
        let (one, second) = (quota.price(1), 1_000_000_000);
        let mut level = Level::default();
        level.take(&quota, one * 6, START);
        // Half a second later five of six have flowed back: one is left to be given.
        level.take(&quota, one * 5, START + second / 2);
        level.give_back(one * 6, 0, START, START + second / 2);
        assert_eq!(level.room(&quota, START + second / 2), one * 5);
        level.give_back(one * 6, 0, START, START + second);
        assert_eq!(level.room(&quota, START + second), one * 10);
    }

    #[test]
    fn a_clock_that_goes_back_is_healed_within_a_burst() {
        for quota in &quotas() {
            let mut level = Level::default();
            level.take(quota, quota.price(1), START);
            let before = START - 86_400_000_000_000;
            level.heal(quota, before);
            let full = quota.price(quota.limit());
            let heals = before + if quota.window() == 0 { full } else { 0 };
            assert_eq!(level.room(quota, heals), full, "{quota:?}");
        }
    }
}
