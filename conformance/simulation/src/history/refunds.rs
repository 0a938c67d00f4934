//! What was taken of a limit for nobody is given back: for calls that were left, and reservations that have ended or expired.

use std::collections::BTreeMap;
use std::time::Duration;

use super::History;
use super::numbers::Asked;
use crate::runtime::Time;
use crate::server::Server;

/// Within this time it has been given back.
const GIVEN_BACK: Duration = Duration::from_millis(500);
/// Statements may be under way, and clocks have microseconds.
const MARGIN: Duration = Duration::from_millis(50);

/// Of so many calls one has soon been answered.
const LATER: usize = 16;

/// Of the keys of limits: in which time a permit is replenished.
pub(super) type Intervals = BTreeMap<String, Duration>;

impl History {
    /// The permit of a call goes back from now on.
    pub(crate) fn gives_back(&self, key: &str, call: usize) {
        let by = self.runtime.now() + GIVEN_BACK;
        let mut state = self.lock();
        if let Some(one) = state.asked(key, call) {
            one.given_back = Some(one.given_back.map_or(by, |at| at.min(by)));
        }
    }

    /// Unless that of a reservation is used, it goes back by the next call that begins after this time.
    pub(crate) fn expires(&self, key: &str, call: usize, ttl: Duration) {
        let at = self.runtime.now() + ttl;
        if let Some(one) = self.lock().asked(key, call) {
            one.expires = Some(at);
        }
    }

    /// It is used.
    pub(crate) fn is_used(&self, key: &str, call: usize) {
        if let Some(one) = self.lock().asked(key, call) {
            one.expires = None;
        }
    }

    /// Looks at the limits: no more is owed of any than what was taken and not given back.
    pub(crate) fn check_refunds(&self, server: &Server) {
        if !self.answers {
            return;
        }
        let now = self.runtime.now();
        let state = self.lock();
        let mut wrong = None;
        let promise = "what is taken for nobody is given back";
        for (key, interval) in &state.intervals {
            self.runtime.looks_at(promise);
            let calls = state.calls.get(key).map(Vec::as_slice).unwrap_or_default();
            let most = owed(calls, *interval, now);
            let owed = server.owed(key);
            if owed > most + MARGIN {
                wrong = Some(format!("{key}: {owed:?} instead of {most:?} at {now:?}"));
                break;
            }
        }
        drop(state);
        if let Some(what) = wrong {
            self.runtime.violate(promise, what);
        }
    }
}

/// How much is owed at the most.
fn owed(calls: &[Asked], interval: Duration, now: Time) -> Duration {
    let looked = |after: Time| {
        let later = calls.partition_point(|it| it.began <= after);
        let later = calls[later..].iter().take(LATER);
        later.filter_map(|it| it.answered).min()
    };
    let cost = |call: &Asked| {
        let answered = call.answered.unwrap_or(now).min(now);
        let expired = call.expires.and_then(looked);
        let back = call.given_back.into_iter().chain(expired).min();
        // But what was replenished since.
        match back.filter(|at| *at <= now) {
            Some(at) => (
                answered.min(at),
                interval.min(at.saturating_sub(call.began)),
            ),
            None => (answered, interval),
        }
    };
    let possible = calls.iter().filter(|it| it.took != Some(false)).map(cost);
    let mut possible: Vec<_> = possible.collect();
    possible.sort_unstable();
    let owed = |arrival: Time, (at, cost): &(Time, Duration)| arrival.max(*at) + *cost;
    let arrival = possible.iter().fold(Time::ZERO, owed);
    arrival.saturating_sub(now)
}
