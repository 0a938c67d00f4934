//! When who is refused by a limit is told to come again.

use std::time::Duration;

use lockapi::limit::{Algorithm, Quota};

use super::History;
use crate::runtime::Time;

/// What is promised.
const TOLD: &str = "who is refused is told when a permit is there";
/// The clocks have microseconds.
const MARGIN: Duration = Duration::from_micros(10);

impl History {
    /// A call was refused, and told to come again after a time: when its permit is there, if nobody takes any more, and not
    /// before. One is replenished in each `interval`. What is given back is not expected here.
    pub(crate) fn put_off(
        &self,
        key: &str,
        call: usize,
        (quota, interval): (Quota, Duration),
        after: Duration,
    ) {
        if !self.flawless {
            return;
        }
        let now = self.runtime.now();
        let state = self.lock();
        let Some(calls) = state.calls.get(key) else {
            return;
        };
        let asked = calls[call].began;
        if quota.algorithm() != Algorithm::Gcra {
            drop(state);
            if after > quota.period() {
                self.is_told_wrong(key, after, (Duration::ZERO, quota.period()));
            }
            return;
        }
        let others = calls.iter().enumerate().filter(|(at, _)| *at != call);
        let others = others.map(|(_, other)| other);
        // Those that were answered before took their permits before, at the earliest when they began …
        let certain = others.clone().filter(|it| it.took == Some(true));
        let certain = certain.filter(|it| it.answered.is_some_and(|at| at <= asked));
        let earliest = arrival(certain.map(|it| it.began).collect(), interval);
        // … and others may have, when they were answered at the latest.
        let possible = others.filter(|it| it.took != Some(false) && it.began <= now);
        let at = possible.map(|it| it.answered.map_or(now, |at| at.min(now)));
        let latest = arrival(at.collect(), interval);
        drop(state);
        let burst = interval * u32::try_from(quota.limit()).unwrap_or(u32::MAX);
        let least = (earliest + interval).saturating_sub(burst + now + MARGIN);
        let most = (latest + interval + MARGIN).saturating_sub(burst + asked);
        self.runtime.looks_at(TOLD);
        if after < least || after > most {
            self.is_told_wrong(key, after, (least, most));
        }
    }

    fn is_told_wrong(&self, key: &str, after: Duration, (least, most): (Duration, Duration)) {
        let what = format!("{key}: after {after:?}, instead of {least:?} to {most:?}");
        self.runtime.violate(TOLD, what);
    }
}

/// Up to when permits that were taken at these times are owed.
fn arrival(mut taken: Vec<Time>, interval: Duration) -> Time {
    taken.sort_unstable();
    let owed = |arrival: Time, at: &Time| arrival.max(*at) + interval;
    taken.iter().fold(Time::ZERO, owed)
}
