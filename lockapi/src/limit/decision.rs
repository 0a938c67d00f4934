//! Decisions.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::level::Level;
use super::quota::Quota;
use super::raw_decision::{Outcome, RawDecision};
use crate::key::Key;

/// The source of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Basis {
    /// The database.
    Database,
    /// The policy for when the database cannot be reached.
    Outage,
}

/// Whether a call is admitted, and how many permits are left.
///
/// Times count from the moment when the server decided; they are never too long.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "whether it may be done is in the decision"]
pub struct Decision {
    pub(crate) key: Key,
    pub(crate) quota: Quota,
    pub(crate) cost: u64,
    pub(crate) admitted: bool,
    pub(crate) shadow: bool,
    pub(crate) remaining: u64,
    pub(crate) retry_after: Duration,
    pub(crate) reset_after: Duration,
    /// When permits were taken, by the server's clock; 0 when none were.
    pub(crate) at: i64,
    pub(crate) basis: Basis,
}

impl Decision {
    /// Whether the call may go ahead; always `true` in shadow mode.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.admitted || self.shadow
    }

    /// Whether the permits were available; differs from [`is_allowed`](Self::is_allowed) in shadow
    /// mode.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        self.admitted
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The quota that it was decided by.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// How many permits were requested.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// The most permits that are ever available at once.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.quota.limit()
    }

    /// How many permits are available now; 0 while the key is blocked.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// The time after which the same request is admitted unless others take permits; zero when it
    /// was admitted.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        self.retry_after
    }

    /// The time after which all permits are available again unless any are taken.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        self.reset_after
    }

    /// When permits were taken, by the server's clock; `None` when none were.
    #[must_use]
    pub fn taken_at(&self) -> Option<SystemTime> {
        let since = Duration::from_nanos(u64::try_from(self.at).ok()?);
        (self.at != 0).then(|| UNIX_EPOCH + since)
    }

    /// Its source.
    #[must_use]
    pub fn basis(&self) -> Basis {
        self.basis
    }

    /// Reads the answer of the database.
    pub(crate) fn decided(key: &Key, quota: Quota, cost: u64, decided: &RawDecision) -> Self {
        let admitted = matches!(decided.outcome, Outcome::Taken(_));
        let now = decided.now;
        let mut decision = Self::of(key, quota, cost, &decided.level, now);
        decision.admitted = admitted;
        if admitted {
            decision.retry_after = Duration::ZERO;
            decision.at = now;
        }
        decision
    }

    /// What would be decided on a state.
    pub(crate) fn of(key: &Key, quota: Quota, cost: u64, level: &Level, now: i64) -> Self {
        let wait = level.wait_for(&quota, quota.price(cost), now);
        Self {
            key: key.clone(),
            quota,
            cost,
            admitted: wait == 0,
            shadow: false,
            remaining: u64::try_from(level.fits(&quota, quota.price(1), now)).unwrap_or(0),
            retry_after: duration(wait),
            reset_after: duration(level.idle_in(&quota, now)),
            at: 0,
            basis: Basis::Database,
        }
    }
}

/// The decision on several limits at once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "whether it may be done is in the verdict"]
pub struct Verdict {
    pub(crate) admitted: bool,
    pub(crate) shadow: bool,
    pub(crate) decisions: Vec<Decision>,
}

impl Verdict {
    /// Whether all were admitted; otherwise nothing was taken. Always `true` in shadow mode.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.admitted || self.shadow
    }

    /// Whether all permits were available.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        self.admitted
    }

    /// One for each limit, in the order of the request. A refused request has taken no permits, not
    /// even from a limit whose decision shows that they were available.
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// The limit that binds: of those that refuse the one that does so for the longest time,
    /// otherwise the one with the smallest part of its permits left.
    #[must_use]
    pub fn binding(&self) -> Option<&Decision> {
        let part =
            |one: &Decision| u128::from(one.remaining) * (1 << 32) / u128::from(one.limit().max(1));
        let refuses = self.decisions.iter().filter(|one| !one.admitted);
        refuses.max_by_key(|one| one.retry_after).or_else(|| {
            self.decisions
                .iter()
                .min_by_key(|one| (part(one), one.remaining))
        })
    }
}

/// Nanoseconds, rounded up to the microseconds of the server's clock.
pub(crate) fn duration(nanos: i64) -> Duration {
    let micros = nanos.max(0).unsigned_abs().div_ceil(1000);
    Duration::from_micros(micros)
}
