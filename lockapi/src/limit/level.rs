//! What a row of the table holds, and how it is decided.
//!
//! The statements do the same arithmetic; a property test compares them with this.

use super::quota::{Algorithm, Quota};

/// The number of parts into which a window is divided.
const PARTS: i64 = 1_000_000;

/// The state of a key; times in nanoseconds of the server's clock.
///
/// Nothing but zeros is the state of a key that was never used. The cell rate algorithm has the arrival
/// time, windows have the rest; neither is changed by a quota that only looks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// When the latest request was decided. When that is still to come the clock was set back, and all
    /// times but that of a block are to be moved back by as much.
    pub at: i64,
    /// The theoretical arrival time.
    pub tat: i64,
    /// When the window started; 0 without one.
    pub started: i64,
    /// The length of the window: the longest of those that have taken in it, and of the sliding ones
    /// that took in the window before. Twice as long after it started nothing of it counts.
    pub span: i64,
    /// Permits taken in the window.
    pub used: i64,
    /// Permits taken in the window before.
    pub before: i64,
    /// The length of the longest sliding window that has taken in the window. It counts that in the next
    /// one too, which therefore is as long at least.
    pub slide: i64,
    /// The length of the window before.
    pub span_before: i64,
    /// Everything is refused until then.
    pub blocked_until: i64,
    /// How many reservations are open.
    pub reserved: i64,
    /// When the time began that was withheld from refunds.
    pub withheld_from: i64,
    /// The length of that time, of which every instant was withheld from a refund; it is not withheld again.
    pub withheld: i64,
}

/// The most time that is known to have been withheld, in nanoseconds.
const MAX_WITHHELD: i64 = 316_224_000_000_000_000;

/// What is given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refunded {
    /// Nanoseconds, or permits of a window.
    pub(crate) price: i64,
    /// The length of the window, or 0.
    pub(crate) window: i64,
    /// When it was taken.
    pub(crate) at: i64,
}

impl Level {
    /// How many times `price` fits at `now`.
    pub(crate) fn fits(&self, quota: &Quota, price: i64, now: i64) -> i64 {
        if self.blocked_until > now {
            return 0;
        }
        (self.room(quota, now) / price).max(0)
    }

    /// What is left at `now`, in the unit of the state; less than nothing where a larger quota took it.
    pub(crate) fn room(&self, quota: &Quota, now: i64) -> i64 {
        let depth = quota.price(quota.limit());
        match quota.algorithm() {
            Algorithm::Gcra => depth - self.debt(now),
            Algorithm::FixedWindow => depth - self.rolled(quota, now).used,
            Algorithm::SlidingWindow => {
                let rolled = self.rolled(quota, now);
                depth - rolled.used - overlap(rolled.before, rolled.span, now - rolled.started)
            }
        }
    }

    /// Takes `price`, which has to fit.
    pub(crate) fn take(&mut self, quota: &Quota, price: i64, now: i64) {
        self.move_back(now);
        match quota.algorithm() {
            Algorithm::Gcra => self.tat = self.tat.max(now) + price,
            Algorithm::FixedWindow | Algorithm::SlidingWindow => {
                *self = self.rolled(quota, now);
                self.used += price;
                if quota.is_sliding() {
                    self.slide = self.slide.max(quota.window());
                }
            }
        }
        self.at = now;
    }

    /// Whether it was written at a time that is still to come: the clock was set back.
    pub(crate) fn is_ahead(&self, now: i64) -> bool {
        self.at > now
    }

    /// Moves its times back as far as the clock was set back. No more time has passed since than it
    /// says, so nothing that was taken is forgotten.
    pub(crate) fn move_back(&mut self, now: i64) {
        let by = (self.at - now).max(0);
        self.at -= by;
        self.tat -= by;
        if self.started > 0 {
            self.started -= by;
        }
        if self.withheld > 0 {
            self.withheld_from -= by;
        }
    }

    /// Gives back at once, less what was replenished since it was taken, so that what others have taken meanwhile
    /// stays taken. No instant is withheld from two that are given back.
    pub(crate) fn give_back(&mut self, all: &[Refunded], now: i64) {
        let cells = || all.iter().filter(|one| one.window == 0);
        if let Some(since) = cells().map(|one| one.at).min() {
            let withheld =
                |one: &Refunded| i128::from(one.price.min(self.replenished(one.at, now)));
            let apart: i128 = cells().map(withheld).sum();
            let back: i128 = cells().map(|one| i128::from(one.price)).sum();
            let more = apart.min(i128::from(self.replenished(since, now)));
            let tat = i128::from(self.tat) - (back - more);
            let tat = tat.max(i128::from(self.tat.min(self.at)));
            self.tat = i64::try_from(tat).unwrap_or(self.tat);
            self.withhold(since, i64::try_from(more).unwrap_or(0));
        }
        for one in all.iter().filter(|one| one.window > 0 && self.started > 0) {
            if one.at >= self.started {
                self.used = (self.used - one.price).max(0);
            } else if one.at >= self.started - self.span_before {
                self.before = (self.before - one.price).max(0);
            }
        }
    }

    /// How much of what was replenished since then was not withheld yet.
    fn replenished(&self, since: i64, now: i64) -> i64 {
        let end = (self.withheld_from + self.withheld).min(now);
        let withheld = (end - self.withheld_from.max(since)).max(0);
        (now - since - withheld).max(0)
    }

    /// Notes that more was withheld of what was replenished since then. It counts at the earliest place: so it is
    /// missing to as few as possible.
    fn withhold(&mut self, since: i64, more: i64) {
        let (start, length) = (self.withheld_from, self.withheld);
        let (start, length) = match () {
            () if since <= start + length && since + length + more >= start => {
                (start.min(since), length + more)
            }
            () if more == 0 || (since < start && more < length) => (start, length),
            () => (since, more),
        };
        self.withheld = length.min(MAX_WITHHELD);
        self.withheld_from = start + (length - self.withheld);
    }

    /// Whether it means the same as no row, to every quota.
    pub(crate) fn is_idle(&self, now: i64) -> bool {
        self.is_over(now) && self.reserved == 0
    }

    /// Whether nothing counts any more but what is reserved.
    pub(crate) fn is_over(&self, now: i64) -> bool {
        self.at <= now && self.tat <= now && self.forgotten() <= now && self.blocked_until <= now
    }

    /// When nothing of the window counts any more.
    pub(crate) fn forgotten(&self) -> i64 {
        self.started + 2 * self.span
    }

    /// Nanoseconds until `price` fits; 0 when it does.
    pub(crate) fn wait_for(&self, quota: &Quota, price: i64, now: i64) -> i64 {
        let blocked = self.blocked_until.saturating_sub(now).max(0);
        let depth = quota.price(quota.limit());
        let level = self.as_of(now);
        let wait = match quota.algorithm() {
            Algorithm::Gcra => level.debt(now) + price - depth,
            Algorithm::FixedWindow | Algorithm::SlidingWindow => {
                let (rolled, room) = (level.rolled(quota, now), depth - price);
                let end = rolled.started + rolled.span;
                let slides = quota.algorithm() == Algorithm::SlidingWindow;
                let at = match () {
                    () if rolled.used > room && slides => {
                        end + reaches(rolled.used, rolled.next_span(quota), room)
                    }
                    () if rolled.used > room => end,
                    () if slides => {
                        let room = room - rolled.used;
                        rolled.started + reaches(rolled.before, rolled.span, room)
                    }
                    () => now,
                };
                at.min(level.forgotten().max(now)) - now
            }
        };
        blocked.max(wait).max(0)
    }

    /// Nanoseconds until everything is there again.
    pub(crate) fn idle_in(&self, quota: &Quota, now: i64) -> i64 {
        let level = self.as_of(now);
        let idle = match quota.algorithm() {
            Algorithm::Gcra => level.debt(now),
            Algorithm::FixedWindow | Algorithm::SlidingWindow => {
                let rolled = level.rolled(quota, now);
                let end = rolled.started + rolled.span;
                let slides = quota.algorithm() == Algorithm::SlidingWindow;
                let at = match () {
                    () if rolled.used > 0 && slides => end + rolled.next_span(quota),
                    () if rolled.used > 0 || (rolled.before > 0 && slides) => end,
                    () => now,
                };
                at.min(level.forgotten().max(now)) - now
            }
        };
        let blocked = self.blocked_until.saturating_sub(now);
        idle.max(blocked).max(0)
    }

    /// How long it takes to replenish the permits, by the cell rate algorithm.
    pub(crate) fn debt(&self, now: i64) -> i64 {
        (self.tat - self.at.max(now)).max(0)
    }

    /// The state with its times as of `now`.
    pub(crate) fn as_of(&self, now: i64) -> Self {
        let mut level = self.clone();
        level.move_back(now);
        level
    }

    /// How long the next window is, for one that takes first in it.
    fn next_span(&self, quota: &Quota) -> i64 {
        quota.window().max(self.slide)
    }

    /// With the window of `now`. A window ends when the longest of those that took in it ends, and of
    /// the sliding ones that took in the window before: one that is shorter waits for that, one that is
    /// longer counts what was taken in it.
    fn rolled(&self, quota: &Quota, now: i64) -> Self {
        let (window, mut rolled) = (quota.window(), self.as_of(now));
        let age = now - rolled.started;
        let span = rolled.span.max(window);
        let known = rolled.started > 0 && age >= 0 && now < rolled.forgotten();
        if known && age < span {
            rolled.span = span;
            return rolled;
        }
        let next = known && age < span + rolled.next_span(quota);
        rolled.before = if next { rolled.used } else { 0 };
        rolled.started = if next && quota.algorithm() == Algorithm::SlidingWindow {
            rolled.started + span
        } else {
            now
        };
        rolled.span_before = if next { span } else { 0 };
        rolled.span = if next {
            rolled.next_span(quota)
        } else {
            window
        };
        rolled.slide = 0;
        rolled.used = 0;
        rolled
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
mod tests;
