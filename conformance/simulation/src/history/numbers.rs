//! Permits and ids.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::time::Duration;

use lockapi::limit::{Algorithm, Quota};

use super::{History, State};
use crate::runtime::Time;

/// Ids that follow one another without a gap.
pub(crate) type Run = RangeInclusive<i64>;

/// A call of a limiter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) began: Time,
    pub(super) answered: Option<Time>,
    /// Whether it took a permit, if that is known.
    pub(super) took: Option<bool>,
    /// By when its permit is given back, if it is.
    pub(super) given_back: Option<Time>,
    /// From when on the next call gives it back.
    pub(super) expires: Option<Time>,
}

/// A call that nobody waits for any more has ended after so long.
const UNDER_WAY: Duration = Duration::from_secs(10);
/// The answers may be so much older or newer than the decision.
const MARGIN: Duration = Duration::from_millis(5);

impl State {
    pub(super) fn asked(&mut self, key: &str, call: usize) -> Option<&mut Asked> {
        self.calls.get_mut(key)?.get_mut(call)
    }
}

impl History {
    /// A limiter is asked for a permit; answers the number of the call.
    pub(crate) fn asks(&self, key: &str) -> usize {
        let call = Asked {
            began: self.runtime.now(),
            answered: None,
            took: None,
            given_back: None,
            expires: None,
        };
        let mut state = self.lock();
        let calls = state.calls.entry(key.to_owned()).or_default();
        calls.push(call);
        calls.len() - 1
    }

    /// It was left, or has failed: it may have taken a permit until then at the latest.
    pub(crate) fn gave_up(&self, key: &str, call: usize) {
        let until = self.runtime.now() + UNDER_WAY;
        if let Some(one) = self.lock().asked(key, call) {
            one.answered = Some(until);
        }
    }

    /// It has answered, and took nothing, although it was not refused there.
    pub(crate) fn took_none(&self, key: &str, call: usize) {
        let now = self.runtime.now();
        if let Some(one) = self.lock().asked(key, call) {
            (one.answered, one.took) = (Some(now), Some(false));
        }
    }

    /// It has answered. A permit is refused only if so many others are taken that there is none: one is replenished
    /// in each `interval`, or all of them a window after the first was taken.
    pub(crate) fn took(
        &self,
        key: &str,
        call: usize,
        took: bool,
        quota: Quota,
        interval: Duration,
    ) {
        let now = self.runtime.now();
        let mut state = self.lock();
        let Some(one) = state.asked(key, call) else {
            return;
        };
        (one.answered, one.took) = (Some(now), Some(took));
        let asked = one.began;
        if quota.algorithm() == Algorithm::Gcra {
            state.intervals.insert(key.to_owned(), interval);
        }
        if took || !self.flawless {
            return;
        }
        let calls = state.calls.get(key).into_iter().flatten();
        let taken = calls.filter(|it| it.took != Some(false));
        let mut taken: Vec<_> = taken.map(|it| it.answered.unwrap_or(now)).collect();
        taken.sort_unstable();
        drop(state);
        let most = u32::try_from(quota.limit()).unwrap_or(u32::MAX);
        let there = if quota.algorithm() == Algorithm::Gcra {
            let arrival = taken
                .iter()
                .fold(Time::ZERO, |arrival, at| arrival.max(*at) + interval);
            arrival.saturating_sub(asked) + interval + MARGIN <= interval * most
        } else {
            let recent = taken
                .iter()
                .filter(|at| **at + quota.period() + MARGIN > asked);
            recent.count() < usize::try_from(most).unwrap_or(usize::MAX)
        };
        let promise = "limits refuse only what is not there";
        self.runtime.looks_at(promise);
        if there {
            let what = format!("{key}: {quota:?} refused a permit at {now:?}");
            self.runtime.violate(promise, what);
        }
    }

    /// A permit was taken at a time of the server's clock, in nanoseconds.
    pub(crate) fn permitted(&self, key: &str, quota: Quota, at: i64) {
        self.answered("permit");
        let mut state = self.lock();
        let permits = state.permits.entry(key.to_owned()).or_default();
        permits.push((at, quota));
    }

    /// In the end: in no time were there more permits than the quotas allow, of which each `interval` replenishes one unless
    /// another is known.
    pub(crate) fn check_limits(&self, interval: i64) {
        if self.stepped {
            return;
        }
        let mut state = self.lock();
        let fail_overs = state.fail_overs.len() as u64;
        let State {
            permits, intervals, ..
        } = &mut *state;
        for (key, permits) in permits {
            let known = intervals.get(key).map(Duration::as_nanos);
            let interval = known.map_or(interval, |it| i64::try_from(it).unwrap_or(i64::MAX));
            // Of those of one moment the smallest bursts come first, which leave the least behind.
            permits.sort_unstable_by_key(|(at, quota)| (*at, quota.limit()));
            // A fail-over forgets at most what a burst is, of the quota that has the largest.
            let largest = permits.iter().map(|(_, quota)| quota.limit()).max();
            let forgotten = largest.unwrap_or_default() * fail_overs;
            let depth = |quota: &Quota| {
                let most = quota.limit() + forgotten;
                interval * i64::try_from(most).unwrap_or(i64::MAX)
            };
            let mut arrival = i64::MIN;
            let (mut began, mut of_window) = (i64::MIN, 0);
            let mut recent = VecDeque::new();
            for (at, quota) in permits {
                let too_many = if quota.algorithm() == Algorithm::Gcra {
                    arrival = arrival.max(*at) + interval;
                    // The times are read in microseconds.
                    arrival - *at > depth(quota) + 1_000
                } else {
                    // Parts of two windows, of which permits that nobody was told of may have begun the first.
                    let period = i64::try_from(quota.period().as_nanos()).unwrap_or(i64::MAX);
                    recent.push_back(*at);
                    recent.retain(|other| *other > at.saturating_sub(period - 1_000));
                    // Where all that are permitted are told, each window begins with the first of its own.
                    if *at >= began.saturating_add(period - 1_000) {
                        (began, of_window) = (*at, 0);
                    }
                    of_window += 1;
                    let more = self.tells_all && of_window > quota.limit();
                    more || recent.len() as u64 > 2 * (quota.limit() + forgotten)
                };
                self.runtime.looks_at("limits hold");
                if too_many {
                    let what = format!("{key}: more than {quota:?} at {at}");
                    self.runtime.violate("limits hold", what);
                    break;
                }
            }
        }
    }

    /// Ids of worker numbers were drawn by a call that began at `asked`: those of one number grow, whoever has it.
    pub(crate) fn drew_of_workers(&self, ids: impl IntoIterator<Item = (u64, Run)>, asked: Time) {
        // After a fail-over numbers go on ahead, while owners of before go on.
        if self.replaced {
            return;
        }
        let now = self.runtime.now();
        let mut state = self.lock();
        for (worker, ids) in ids {
            let (first, last) = (*ids.start(), *ids.end());
            let known = state.ids_of_workers.entry(worker).or_default();
            let before = known.partition_point(|(at, _)| *at < asked);
            let before = before.checked_sub(1).map(|at| known[at].1);
            let highest = known.last().map_or(last, |(_, known)| last.max(*known));
            known.push((now, highest));
            let promise = "ids of a number grow";
            before.inspect(|_| self.runtime.looks_at(promise));
            if let Some(before) = before.filter(|before| *before >= first) {
                let what = format!("number {worker}: {first} was drawn after {before}");
                self.runtime.violate(promise, what);
                break;
            }
        }
    }

    pub(crate) fn drew(&self, name: &'static str, ids: impl IntoIterator<Item = Run>) {
        self.answered("id");
        let mut state = self.lock();
        let seen = state.ids.entry(name).or_default();
        for run in ids {
            if let Some(twice) = seen.overlapping(&run).next() {
                let twice = run.start().max(twice.start());
                self.runtime
                    .violate("ids are unique", format!("{name}: {twice} twice"));
            }
            seen.insert(run);
        }
    }
}
