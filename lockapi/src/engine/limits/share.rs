//! What a process decides by itself while the database cannot be reached.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::Duration;

use super::super::clock::Time;
use crate::error::{Error, ErrorKind};
use crate::limit::{
    Algorithm, Basis, Decision, Level, MAX_DEPTH, Outage, PermitRequest, Policy, Quota,
};
use crate::sync::Mutex;

/// After a failure the database is left alone for so long.
const PAUSE: Duration = Duration::from_millis(500);
/// What a refusal says when nobody knows.
const RETRY: Duration = Duration::from_secs(1);
/// Where there is no room idle keys are looked for this often, in nanoseconds.
const RETAIN_EVERY: i64 = 100_000_000;
/// The most keys that are counted.
const MAX_KEYS: usize = 10_000;

/// A key, and the part of its quota that is this process's.
type ShareKey = (String, Quota);

#[derive(Default)]
struct State {
    levels: HashMap<ShareKey, Level>,
    /// When idle keys are looked for again, which looks at all of them.
    retain_at: i64,
    /// The database is not asked before this time, because it failed.
    out_until: Option<Time>,
}

impl State {
    fn decide(&mut self, request: &PermitRequest, policy: &Policy, now: i64) -> Decision {
        let quota = request.quota.unwrap_or(policy.quota);
        let mut decision = Decision::of(&request.key, quota, request.cost, &Level::default(), now);
        decision.basis = Basis::Outage;
        decision.shadow = policy.shadow;
        match policy.outage {
            Outage::Open | Outage::Fail => {}
            Outage::Closed => refuse(&mut decision),
            Outage::Share(_) => self.share(&mut decision, request, share_key(request, policy), now),
        }
        decision
    }

    fn share(&mut self, decision: &mut Decision, request: &PermitRequest, key: ShareKey, now: i64) {
        let part = key.1;
        if request.cost > part.limit() {
            refuse(decision);
            return;
        }
        if self.levels.len() >= MAX_KEYS && !self.levels.contains_key(&key) {
            if now >= self.retain_at {
                self.levels.retain(|_, level| !level.is_idle(now));
                self.retain_at = now.saturating_add(RETAIN_EVERY);
            }
            if self.levels.len() >= MAX_KEYS {
                refuse(decision);
                return;
            }
        }
        let level = self.levels.entry(key).or_default();
        let own = Decision::of(&request.key, part, request.cost, level, now);
        decision.admitted = own.admitted;
        decision.retry_after = own.retry_after;
        if own.admitted {
            level.take(&part, part.price(request.cost), now);
        }
        let after = Decision::of(&request.key, part, request.cost, level, now);
        decision.remaining = after.remaining;
        decision.reset_after = after.reset_after;
    }
}

/// The levels of keys in this process, and whether the database is worth asking.
#[derive(Default)]
pub(super) struct Shares(Mutex<State>);

impl Shares {
    /// Whether the database is to be left alone. Once in a while one call is to find out whether it answers again, and no other
    /// waits for that.
    pub(super) fn is_out(&self, policy: &Policy, now: Time) -> bool {
        if policy.outage == Outage::Fail {
            return false;
        }
        let mut state = self.lock();
        match state.out_until {
            None => false,
            Some(until) if now < until => true,
            Some(_) => {
                state.out_until = Some(now + PAUSE);
                false
            }
        }
    }

    /// The database has answered.
    pub(super) fn answered(&self, policy: &Policy) {
        if policy.outage != Outage::Fail {
            self.lock().out_until = None;
        }
    }

    /// Takes note of an error; answers whether the policy decides instead. A key that is locked says
    /// nothing of the others, and calls that wait in this process say nothing of the database.
    pub(super) fn applies(&self, policy: &Policy, error: &Error, now: Time) -> bool {
        let out = error.is_outage() || error.kind() == ErrorKind::Indeterminate;
        if out {
            self.lock().out_until = Some(now + PAUSE);
        }
        out && policy.outage != Outage::Fail
    }

    /// What the policy says to one request, which was checked.
    pub(super) fn decide(&self, request: &PermitRequest, policy: &Policy, now: Time) -> Decision {
        self.lock().decide(request, policy, nanos(now))
    }

    /// What the policy says to several requests, which are admitted all or not at all.
    pub(super) fn decide_all(
        &self,
        requests: &[PermitRequest],
        policy: &Policy,
        now: Time,
    ) -> Vec<Decision> {
        let mut state = self.lock();
        let mut before = Vec::with_capacity(requests.len());
        let mut decide = |request: &PermitRequest| {
            let key = share_key(request, policy);
            before.push((state.levels.get(&key).cloned(), key));
            state.decide(request, policy, nanos(now))
        };
        let decisions: Vec<_> = requests.iter().map(&mut decide).collect();
        if !decisions.iter().all(Decision::is_admitted) {
            for (level, key) in before.into_iter().rev() {
                match level {
                    Some(level) => state.levels.insert(key, level),
                    None => state.levels.remove(&key),
                };
            }
        }
        decisions
    }

    fn lock(&self) -> crate::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refuse(decision: &mut Decision) {
    decision.admitted = false;
    decision.remaining = 0;
    decision.retry_after = RETRY;
    decision.reset_after = RETRY;
}

/// The start of the clock is not the zero of a level.
fn nanos(now: Time) -> i64 {
    i64::try_from(now.as_nanos())
        .unwrap_or(i64::MAX / 4)
        .saturating_add(1)
}

fn share_key(request: &PermitRequest, policy: &Policy) -> ShareKey {
    let parts = match policy.outage {
        Outage::Share(parts) => parts,
        Outage::Open | Outage::Closed | Outage::Fail => 1,
    };
    let quota = request.quota.unwrap_or(policy.quota);
    (request.key.to_string(), part(&quota, parts))
}

/// One of this number of parts of a quota, rounded down but at least one permit at once: those are
/// there less often, and never less often than every ten years.
fn part(quota: &Quota, parts: u32) -> Quota {
    let permits = (quota.limit() / u64::from(parts.max(1))).max(1);
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let longer = |times: u32, most: Duration| quota.period().saturating_mul(times).min(most);
    let windows = u64::from(parts).div_ceil(quota.limit()).max(1);
    let window = Quota::new(permits, longer(small(windows), MAX_DEPTH));
    match quota.algorithm() {
        Algorithm::Gcra => {
            let most = MAX_DEPTH.saturating_mul(small(quota.permits()));
            Quota::new(quota.permits(), longer(parts.max(1), most)).burst(permits)
        }
        Algorithm::FixedWindow => window.fixed_window(),
        Algorithm::SlidingWindow => window.sliding_window(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_finds_out_whether_an_outage_is_over() {
        let shares = Shares::default();
        let policy = Policy::new(Quota::per_second(100)).outage(Outage::Open);
        let out = |times: u32| shares.is_out(&policy, PAUSE * times);
        assert!(!out(0));
        let failed = |kind| shares.applies(&policy, &Error::new(kind, "check", ""), PAUSE);
        assert!(!failed(ErrorKind::TimedOut) && !out(1), "a key is locked");
        assert!(failed(ErrorKind::Indeterminate) && out(1));
        assert!(!out(2) && out(2), "the next one asks, and no other");
        assert!(!out(3) && out(3));
        shares.answered(&policy);
        assert!(!out(3) && !out(3));
    }

    #[test]
    fn a_share_is_a_part_of_the_quota() {
        let shares = Shares::default();
        let policy = Policy::new(Quota::per_second(100)).outage(Outage::Share(4));
        let request = PermitRequest::new("key");
        let admitted = |now: u64| {
            let decide = || shares.decide(&request, &policy, Duration::from_millis(now));
            std::iter::repeat_with(decide)
                .take_while(Decision::is_allowed)
                .count()
        };
        assert_eq!(admitted(0), 25);
        assert_eq!(admitted(39), 0);
        assert_eq!(admitted(40), 1);
        assert_eq!(admitted(100_000), 25);
    }

    #[test]
    fn a_share_of_a_window_is_a_window() {
        let shares = Shares::default();
        let minute = |nth: u64| Duration::from_secs(60 * nth + 1);
        let admitted = |policy: &Policy, now: Time| {
            let request = PermitRequest::new("key");
            let decide = || shares.decide(&request, policy, now);
            std::iter::repeat_with(decide)
                .take_while(Decision::is_allowed)
                .count()
        };
        let policy = Policy::new(Quota::per_minute(100).fixed_window()).outage(Outage::Share(4));
        assert_eq!(admitted(&policy, minute(0)), 25);
        assert_eq!(admitted(&policy, minute(0) + Duration::from_secs(59)), 0);
        assert_eq!(admitted(&policy, minute(1)), 25);
        // Of less than one permit for each there is one in several windows.
        let policy = Policy::new(Quota::per_minute(2).sliding_window()).outage(Outage::Share(5));
        assert_eq!(admitted(&policy, minute(0)), 1);
        assert_eq!(admitted(&policy, minute(2)), 0);
        assert_eq!(admitted(&policy, minute(6)), 1);
    }

    #[test]
    fn a_share_of_several_limits_is_all_or_nothing() {
        let shares = Shares::default();
        let policy = Policy::new(Quota::per_hour(8)).outage(Outage::Share(4));
        let requests = [
            PermitRequest::new("one").cost(2),
            PermitRequest::new("two").cost(2),
        ];
        let decide =
            |requests: &[PermitRequest]| shares.decide_all(requests, &policy, Duration::ZERO);
        let taken = |requests: &[PermitRequest]| decide(requests).iter().all(Decision::is_admitted);
        assert!(taken(&requests[1..]));
        assert!(!taken(&requests));
        assert!(taken(&requests[..1]), "none was taken");
        assert!(!taken(&requests[..1]));
    }

    #[test]
    fn the_smallest_share_is_no_overflow() {
        let shares = Shares::default();
        let year = Quota::new(1, crate::limit::MAX_PERIOD);
        let most = Quota::new(1_000_000_000, crate::limit::MAX_PERIOD);
        for quota in [year, most, year.fixed_window(), most.sliding_window()] {
            let policy = Policy::new(quota).outage(Outage::Share(u32::MAX));
            for (day, admitted) in [(1, true), (2, false), (366 * 30, true)] {
                let day = Duration::from_secs(24 * day * 3600);
                let decision = shares.decide(&PermitRequest::new("key"), &policy, day);
                assert_eq!(decision.is_admitted(), admitted, "{quota:?}");
            }
        }
    }

    #[test]
    fn calls_that_wait_in_this_process_are_no_outage() {
        let policy = Policy::new(Quota::per_hour(1)).outage(Outage::Open);
        let shares = Shares::default();
        let full = Error::new(ErrorKind::Capacity, "check", "too many wait");
        assert!(!shares.applies(&policy, &full, Time::ZERO));
        assert!(!shares.is_out(&policy, Time::ZERO));
        let away = Error::new(ErrorKind::Unavailable, "check", "no server");
        assert!(shares.applies(&policy, &away, Time::ZERO));
        assert!(shares.is_out(&policy, Time::ZERO));
    }

    #[test]
    fn the_keys_are_bounded() {
        let shares = Shares::default();
        let policy = Policy::new(Quota::per_hour(2)).outage(Outage::Share(1));
        for nth in 0..MAX_KEYS {
            let request = PermitRequest::new(i64::try_from(nth).unwrap());
            assert!(
                shares
                    .decide(&request, &policy, Duration::ZERO)
                    .is_allowed()
            );
        }
        let more = PermitRequest::new("more");
        assert!(!shares.decide(&more, &policy, Duration::ZERO).is_allowed());
        let known = PermitRequest::new(0);
        assert!(shares.decide(&known, &policy, Duration::ZERO).is_allowed());
        let later = Duration::from_secs(2 * 3600);
        assert!(shares.decide(&more, &policy, later).is_allowed());
    }
}
