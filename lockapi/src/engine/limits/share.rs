//! What a process decides by itself while the database cannot be reached.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::super::clock::Time;
use crate::error::{Error, ErrorKind};
use crate::limit::{Basis, Decision, Level, Outage, Policy, Quota, Want};

/// After a failure the database is left alone for so long.
const PAUSE: Duration = Duration::from_millis(500);
/// What a refusal says when nobody knows.
const RETRY: Duration = Duration::from_secs(1);
/// The most keys that are counted.
const MAX_KEYS: usize = 10_000;

#[derive(Default)]
struct State {
    levels: HashMap<(String, Quota), Level>,
    /// The database is not asked before this time, because it failed with this error.
    until: Time,
}

/// The levels of keys in this process, and whether the database is worth asking.
#[derive(Default)]
pub(super) struct Shares(Mutex<State>);

impl Shares {
    /// Whether the database is to be left alone.
    pub(super) fn is_out(&self, policy: &Policy, now: Time) -> bool {
        policy.outage != Outage::Fail && now < self.lock().until
    }

    /// Takes note of an error; answers whether the policy decides instead.
    pub(super) fn applies(&self, policy: &Policy, error: &Error, now: Time) -> bool {
        let out = matches!(
            error.kind(),
            ErrorKind::Unavailable | ErrorKind::Indeterminate | ErrorKind::Capacity
        );
        if out {
            self.lock().until = now + PAUSE;
        }
        out && policy.outage != Outage::Fail
    }

    /// What the policy says to one want, which was checked.
    pub(super) fn decide(&self, want: &Want, policy: &Policy, now: Time) -> Decision {
        let quota = want.quota.unwrap_or(policy.quota);
        let now = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX / 4);
        // The start of the clock is not the zero of the level.
        let now = now.saturating_add(1);
        let mut decision = Decision::of(&want.key, quota, want.cost, &Level::default(), now);
        decision.basis = Basis::Outage;
        decision.shadow = policy.shadow;
        match policy.outage {
            Outage::Open | Outage::Fail => {}
            Outage::Closed => refuse(&mut decision),
            Outage::Share(parts) => {
                self.share(&mut decision, want, &part(&quota, parts), now);
            }
        }
        decision
    }

    fn share(&self, decision: &mut Decision, want: &Want, part: &Quota, now: i64) {
        if want.cost > part.limit() {
            refuse(decision);
            return;
        }
        let mut state = self.lock();
        if state.levels.len() >= MAX_KEYS {
            state.levels.retain(|_, level| !level.is_idle(now));
        }
        let full = state.levels.len() >= MAX_KEYS;
        let place = (want.key.to_string(), *part);
        if full && !state.levels.contains_key(&place) {
            refuse(decision);
            return;
        }
        let level = state.levels.entry(place).or_default();
        let price = part.price(want.cost);
        let own = Decision::of(&want.key, *part, want.cost, level, now);
        decision.admitted = own.admitted;
        decision.retry_after = own.retry_after;
        if own.admitted {
            level.take(part, price, now);
        }
        let after = Decision::of(&want.key, *part, want.cost, level, now);
        decision.remaining = after.remaining;
        decision.reset_after = after.reset_after;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refuse(decision: &mut Decision) {
    decision.admitted = false;
    decision.remaining = 0;
    decision.retry_after = RETRY;
    decision.reset_after = RETRY;
}

/// One part of so many of a quota, rounded down but at least one permit at once.
fn part(quota: &Quota, parts: u32) -> Quota {
    let burst = (quota.limit() / u64::from(parts.max(1))).max(1);
    let period = quota.period().saturating_mul(parts.max(1));
    Quota::new(quota.permits(), period).burst(burst)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_part_of_the_quota() {
        let shares = Shares::default();
        let policy = Policy::new(Quota::per_second(100)).outage(Outage::Share(4));
        let want = Want::new("key");
        let admitted = |now: u64| {
            let decide = || shares.decide(&want, &policy, Duration::from_millis(now));
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
    fn the_keys_are_bounded() {
        let shares = Shares::default();
        let policy = Policy::new(Quota::per_hour(2)).outage(Outage::Share(1));
        for nth in 0..MAX_KEYS {
            let want = Want::new(i64::try_from(nth).unwrap());
            assert!(shares.decide(&want, &policy, Duration::ZERO).is_allowed());
        }
        let more = Want::new("more");
        assert!(!shares.decide(&more, &policy, Duration::ZERO).is_allowed());
        let known = Want::new(0);
        assert!(shares.decide(&known, &policy, Duration::ZERO).is_allowed());
        let later = Duration::from_hours(2);
        assert!(shares.decide(&more, &policy, later).is_allowed());
    }
}
