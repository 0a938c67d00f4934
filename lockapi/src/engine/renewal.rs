//! Renewing what a process holds before it ends, and losing what has ended: leases and deliveries.

use std::collections::BTreeSet;
use std::hash::Hash;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::clock::Time;
use super::timer::Timer;
use crate::hold::Hold;
use crate::sync::MutexGuard;

/// It is renewed when this part of its time to live has passed …
const RENEW_PART: u32 = 3;
/// … together with what is due within this part, and a failed renewal is repeated after it.
const SLACK_PART: u32 = 12;
/// This part is subtracted for the difference in speed of two clocks.
const DRIFT_PART: u32 = 50;

/// How long something is surely held, counted from before the request was sent.
pub(super) fn deadline(sent: Time, ttl: Duration) -> Time {
    sent + ttl.saturating_sub(ttl / DRIFT_PART)
}

/// When it is to be renewed that was granted or renewed by a request sent then.
pub(super) fn renew_at(sent: Time, ttl: Duration) -> Time {
    sent + ttl / RENEW_PART
}

/// Something that is held until its deadline, unless it is renewed.
pub(super) struct Held<E> {
    pub(super) ttl: Duration,
    /// Whether that happens by itself.
    pub(super) renewed: bool,
    /// It has the deadline.
    pub(super) hold: Arc<Hold>,
    /// When the timer checks it next.
    due: Time,
    pub(super) what: E,
}

impl<E> Held<E> {
    /// What a request that was sent at `sent` was granted.
    pub(super) fn new(sent: Time, ttl: Duration, renewed: bool, what: E) -> Self {
        let hold = Arc::<Hold>::default();
        hold.set_deadline(deadline(sent, ttl));
        let mut held = Self {
            ttl,
            renewed,
            hold,
            due: sent,
            what,
        };
        held.due = held.next_attempt(sent);
        held
    }

    pub(super) fn deadline(&self) -> Time {
        self.hold.deadline()
    }

    /// When the timer checks it next.
    pub(super) fn due(&self) -> Time {
        self.due
    }

    /// When the timer has to look after it was granted or renewed by a request that was sent at `sent`.
    pub(super) fn next_attempt(&self, sent: Time) -> Time {
        if self.renewed {
            renew_at(sent, self.ttl)
        } else {
            self.deadline()
        }
    }

    /// When a renewal that failed is repeated.
    pub(super) fn repeat_at(&self, now: Time) -> Time {
        now + self.ttl / SLACK_PART
    }

    /// What is due within this time goes along, so that renewals come to be sent together.
    pub(super) fn slack(&self) -> Duration {
        if self.renewed && self.deadline() > self.due {
            self.ttl / SLACK_PART
        } else {
            Duration::ZERO
        }
    }
}

/// What a process holds, in the order in which something has to be done about it.
pub(super) struct Holdings<K, E> {
    entries: FxHashMap<K, Held<E>>,
    due: BTreeSet<(Time, K)>,
    /// When the timer is to look.
    armed: Option<Time>,
}

impl<K, E> Default for Holdings<K, E> {
    fn default() -> Self {
        Self {
            entries: FxHashMap::default(),
            due: BTreeSet::new(),
            armed: None,
        }
    }
}

impl<K: Copy + Ord + Hash, E> Holdings<K, E> {
    pub(super) fn insert(&mut self, key: K, held: Held<E>) {
        self.due.insert((held.due, key));
        self.entries.insert(key, held);
    }

    pub(super) fn get(&self, key: K) -> Option<&Held<E>> {
        self.entries.get(&key)
    }

    pub(super) fn get_mut(&mut self, key: K) -> Option<&mut Held<E>> {
        self.entries.get_mut(&key)
    }

    pub(super) fn remove(&mut self, key: K) -> Option<Held<E>> {
        let held = self.entries.remove(&key)?;
        self.due.remove(&(held.due, key));
        Some(held)
    }

    /// Takes all out of which this is true.
    pub(super) fn take(&mut self, which: impl Fn(&E) -> bool) -> Vec<(K, Held<E>)> {
        let entries = self.entries.iter();
        let keys: Vec<_> = entries
            .filter(|(_, held)| which(&held.what))
            .map(|(key, _)| *key)
            .collect();
        let taken = keys
            .into_iter()
            .filter_map(|key| Some((key, self.remove(key)?)));
        taken.collect()
    }

    /// The timer checks it then, and not after its deadline.
    pub(super) fn schedule(&mut self, key: K, at: Time) {
        if let Some(held) = self.entries.get_mut(&key) {
            self.due.remove(&(held.due, key));
            held.due = at.min(held.deadline());
            self.due.insert((held.due, key));
        }
    }

    /// It was renewed for `ttl` by a request that was sent at `sent`, and is held until `deadline`.
    pub(super) fn renewed(&mut self, key: K, sent: Time, ttl: Duration, deadline: Time) {
        if let Some(held) = self.entries.get_mut(&key) {
            held.hold.set_deadline(deadline);
            held.ttl = ttl;
            let next = held.next_attempt(sent);
            self.schedule(key, next);
        }
    }

    /// The timer looks, as it was armed to.
    pub(super) fn timer_fired(&mut self, armed: Time) {
        if self.armed == Some(armed) {
            self.armed = None;
        }
    }

    /// The first that is due, or will be within its slack.
    pub(super) fn next_due(&self, now: Time, slack: impl Fn(&Held<E>) -> Duration) -> Option<K> {
        let (due, key) = *self.due.first()?;
        let held = self.entries.get(&key)?;
        (due <= now + slack(held)).then_some(key)
    }
}

/// Sees to it that the timer lets `owner` look when the first entry is due.
pub(super) fn arm<K, E, T>(
    mut holdings: MutexGuard<'_, Holdings<K, E>>,
    timer: &Timer,
    owner: &Weak<T>,
    on_timer: fn(&T, Time),
) where
    K: Copy + Ord,
    T: Send + Sync + 'static,
{
    let Some((first, _)) = holdings.due.first().copied() else {
        return;
    };
    if holdings.armed.is_some_and(|armed| armed <= first) {
        return;
    }
    holdings.armed = Some(first);
    drop(holdings);
    let owner = owner.clone();
    timer.run_at(first, move || {
        if let Some(owner) = owner.upgrade() {
            on_timer(&owner, first);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_that_fails_each_time_is_tried_eight_times() {
        let held = Held::new(Time::ZERO, Duration::from_secs(12), true, ());
        let mut at = held.next_attempt(Time::ZERO);
        let mut tries = 0;
        while at < held.deadline() {
            tries += 1;
            at = held.repeat_at(at);
        }
        assert_eq!(tries, 8);
    }
}
