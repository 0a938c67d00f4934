//! Decisions without a round trip: by blocks of permits, and by cached refusals.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::error::Result;
use crate::key::Key;
use crate::limit::{Basis, Decision, PermitRequest, Permits, Quota, RateLimiter, Verdict};
use crate::sync::{Mutex, MutexGuard};
use crate::telemetry;

/// A refusal is repeated for so long at most.
const REPEATED: Duration = Duration::from_secs(1);
/// Demand is counted over this time. A block that was used up within it is followed by one of twice its size.
const SHORT: Duration = Duration::from_millis(100);
/// A key that is asked for so often in that time has a block, which is of this size at first.
const DEMAND: u64 = 8;
/// A block that has lasted for longer, or of which more than half lost its worth, is followed by one of half its size.
const LONG: Duration = Duration::from_secs(1);
/// A block is at most this part of the quota, so that other processes have room.
const PART: u64 = 10;
/// The most keys of which refusals, or blocks, are remembered.
const MAX_KEYS: usize = 10_000;

/// A key under a quota.
type AdmissionKey = (Key, Quota);

pub(super) struct Admission {
    limiter: Arc<dyn RateLimiter>,
    /// The most permits of a block; with 1 there are none.
    most: u64,
    /// By their costs: how long another one has to wait is not known.
    refusals: Mutex<Recent<(AdmissionKey, u64), Refusal>>,
    blocks: Mutex<Recent<AdmissionKey, Arc<Blocks>>>,
}

/// What the database refused.
#[derive(Clone)]
struct Refusal {
    at: Duration,
    until: Duration,
    decision: Decision,
}

impl Admission {
    pub(super) fn new(limiter: Arc<dyn RateLimiter>, most: u64) -> Self {
        Self {
            limiter,
            most,
            refusals: Mutex::default(),
            blocks: Mutex::default(),
        }
    }

    pub(super) fn limiter(&self) -> &Arc<dyn RateLimiter> {
        &self.limiter
    }

    pub(super) async fn decide(&self, requests: &[PermitRequest]) -> Result<Verdict> {
        let policy = self.limiter.policy();
        let quota = policy.quota();
        if !policy.shadow
            && let Some(verdict) = self.refused_already(requests, quota)
        {
            return Ok(verdict);
        }
        let [request] = requests else {
            return self
                .ask(policy.shadow, self.limiter.check_all(requests))
                .await;
        };
        if request.cost == 1 && self.take_of_block(request, quota).await {
            return Ok(Verdict {
                admitted: true,
                shadow: policy.shadow,
                decisions: Vec::new(),
            });
        }
        let one = async {
            let decisions = self.limiter.check_each(requests).await?;
            Ok(Verdict {
                admitted: decisions.iter().all(Decision::is_admitted),
                shadow: policy.shadow,
                decisions,
            })
        };
        self.ask(policy.shadow, one).await
    }

    /// Waits for a verdict, and takes note of what the database refused.
    async fn ask(
        &self,
        shadow: bool,
        asking: impl Future<Output = Result<Verdict>>,
    ) -> Result<Verdict> {
        // Before the server decides, so that nothing is refused for longer than it said.
        let asked_at = self.limiter.now();
        let verdict = asking.await?;
        if !shadow && !verdict.is_admitted() {
            self.note(&verdict, asked_at);
        }
        Ok(verdict)
    }

    /// The refusals that still hold of what is wanted.
    fn refused_already(&self, requests: &[PermitRequest], quota: Quota) -> Option<Verdict> {
        let mut refusals = lock(&self.refusals);
        if refusals.is_empty() {
            return None;
        }
        let now = self.limiter.now();
        let mut decisions = Vec::new();
        for request in requests {
            let Some(refusal) = refusals.get(&(admission_key(request, quota), request.cost)) else {
                continue;
            };
            if now < refusal.until {
                let mut decision = refusal.decision.clone();
                let age = now.saturating_sub(refusal.at);
                decision.retry_after = decision.retry_after.saturating_sub(age);
                decision.reset_after = decision.reset_after.saturating_sub(age);
                decisions.push(decision);
            }
        }
        drop(refusals);
        for decision in &decisions {
            telemetry::decided(decision.key(), false);
        }
        (!decisions.is_empty()).then_some(Verdict {
            admitted: false,
            shadow: false,
            decisions,
        })
    }

    /// Takes note of what the database refused.
    fn note(&self, verdict: &Verdict, asked_at: Duration) {
        let mut refusals = lock(&self.refusals);
        for decision in &verdict.decisions {
            if decision.admitted || decision.basis != Basis::Database {
                continue;
            }
            // Of a key that is named twice, the sum was refused.
            let same = verdict
                .decisions
                .iter()
                .filter(|other| (&other.key, other.quota) == (&decision.key, decision.quota));
            if same.count() > 1 {
                continue;
            }
            let refusal = Refusal {
                at: asked_at,
                until: asked_at + decision.retry_after.min(REPEATED),
                decision: decision.clone(),
            };
            let key = (decision.key.clone(), decision.quota);
            refusals.insert((key, decision.cost), refusal);
        }
    }

    /// Whether a permit of a block was there, or of a new one. Otherwise nothing is decided.
    async fn take_of_block(&self, request: &PermitRequest, quota: Quota) -> bool {
        let key = admission_key(request, quota);
        let most = self.most.min(key.1.limit() / PART);
        if most < 2 {
            return false;
        }
        let of = key.1;
        let blocks = {
            let mut recent = lock(&self.blocks);
            if let Some(blocks) = recent.get(&key) {
                Arc::clone(blocks)
            } else {
                let new = Arc::<Blocks>::default();
                recent.insert(key, Arc::clone(&new));
                new
            }
        };
        if lock(&blocks.state).try_now(self.limiter.now()) {
            return true;
        }
        // One asks for the next block, the others wait in the order of arrival, unless there may be no answer.
        let unanswered = lock(&blocks.state).unanswered;
        let asking = blocks.asking.try_lock();
        let _asking = match asking {
            Ok(asking) => asking,
            Err(_) if unanswered => return false,
            Err(_) => blocks.asking.lock().await,
        };
        let asked_at = self.limiter.now();
        let permits = {
            let mut state = lock(&blocks.state);
            if state.try_now(asked_at) {
                return true;
            }
            match state.next(asked_at, most, &of) {
                0 => return false,
                size => self.limiter.permits(&request.clone().cost(size)),
            }
        };
        // Where it fails, the limiter is asked as without blocks: its policy for outages decides.
        let Ok(permits) = permits else {
            return false;
        };
        let taken = permits.take_of_block().await;
        let now = self.limiter.now();
        let mut state = lock(&blocks.state);
        state.unanswered = taken.is_err();
        let taken = taken.unwrap_or(false);
        state.round_trip = now.saturating_sub(asked_at);
        state.renew(taken.then_some(permits), now);
        taken
    }
}

/// The blocks of a key, one after the other.
#[derive(Default)]
struct Blocks {
    state: Mutex<State>,
    asking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    /// What is at hand of the last one.
    permits: Option<Arc<dyn Permits>>,
    /// Of the last one; 0 where there is none.
    size: u64,
    /// Since when the last one is there, or demand is counted.
    since: Duration,
    /// How many asked since, where there is no block.
    demand: u64,
    /// How many permits of the last one were used; the others lose their worth.
    used: u64,
    /// How long the last block was asked for. Meanwhile a part of it lost its worth.
    round_trip: Duration,
    /// No block is asked for until then.
    no_block_before: Duration,
    /// The last one was asked for in vain.
    unanswered: bool,
}

impl State {
    fn try_now(&mut self, now: Duration) -> bool {
        if self.size == 0 {
            if now.saturating_sub(self.since) > SHORT {
                (self.since, self.demand) = (now, 0);
            }
            self.demand += 1;
        }
        let admitted = self
            .permits
            .as_ref()
            .is_some_and(|permits| permits.try_now());
        self.used += u64::from(admitted);
        admitted
    }

    /// How large the next block is; 0 where none is worth it.
    fn next(&mut self, now: Duration, most: u64, quota: &Quota) -> u64 {
        let least = self.least(quota);
        if self.size == 0 {
            if self.demand < DEMAND || now < self.no_block_before {
                return 0;
            }
            if least > most {
                // The round trip may have been an exception.
                self.round_trip /= 2;
                self.renew(None, now);
                return 0;
            }
            self.size = DEMAND.clamp(least, most);
            return self.size;
        }
        let age = now.saturating_sub(self.since);
        let size = match () {
            () if self.used < self.size / 2 => self.size / 2,
            () if age < SHORT => (self.size * 2).max(least),
            () if age > LONG => self.size / 2,
            () => self.size,
        };
        if size < least || least > most {
            self.renew(None, now);
            return 0;
        }
        self.size = size.min(most);
        self.size
    }

    /// The smallest block of which half is left when it is there.
    fn least(&self, quota: &Quota) -> u64 {
        if quota.window() > 0 {
            return 2;
        }
        let lost = self.round_trip.as_nanos() / u128::from(quota.interval().unsigned_abs().max(1));
        u64::try_from(2 * lost).unwrap_or(u64::MAX).max(2)
    }

    /// Puts a block in the place of the last one. Where there is none, because the database refuses or does not answer,
    /// those who wait for it are not to find that out one by one.
    fn renew(&mut self, permits: Option<Arc<dyn Permits>>, now: Duration) {
        if permits.is_none() {
            (self.size, self.no_block_before) = (0, now + LONG);
        }
        // The first permit is that of who asked.
        (self.permits, self.since, self.demand, self.used) = (permits, now, 0, 1);
    }
}

fn admission_key(request: &PermitRequest, quota: Quota) -> AdmissionKey {
    (request.key.clone(), request.quota.unwrap_or(quota))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The values of keys that were used recently: at least half of [`MAX_KEYS`] of them.
struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self {
            young: HashMap::new(),
            old: HashMap::new(),
        }
    }
}

impl<K: Eq + Hash + Clone, V: Clone> Recent<K, V> {
    fn is_empty(&self) -> bool {
        self.young.is_empty() && self.old.is_empty()
    }

    fn get(&mut self, key: &K) -> Option<&V> {
        if let Some(value) = self.old.remove(key) {
            self.insert(key.clone(), value);
        }
        self.young.get(key)
    }

    fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= MAX_KEYS / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.old.remove(&key);
        self.young.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_grow_while_they_do_not_last() {
        let after = |size, used, millis| {
            let mut state = State {
                size,
                used,
                ..State::default()
            };
            state.next(Duration::from_millis(millis), 100, &Quota::per_hour(1000))
        };
        let used_up = |size, millis| after(size, size, millis);
        let sizes = (used_up(8, 10), used_up(64, 10), used_up(100, 10));
        assert_eq!(sizes, (16, 100, 100));
        let sizes = (used_up(8, 500), used_up(8, 1500), used_up(2, 1500));
        assert_eq!(sizes, (8, 4, 0));
        // Most of it lost its worth.
        assert_eq!((after(8, 3, 10), after(2, 0, 10)), (4, 0));
    }

    #[test]
    fn a_block_outlasts_its_round_trip() {
        let after = |round_trip, millis, quota: Quota| {
            let mut state = State {
                round_trip: Duration::from_millis(round_trip),
                demand: DEMAND,
                ..State::default()
            };
            state.next(Duration::from_millis(millis), 100, &quota)
        };
        let quota = Quota::per_second(2000);
        assert_eq!((after(1, 0, quota), after(10, 0, quota)), (8, 40));
        assert_eq!(after(30, 0, quota), 0, "it would be worth nothing");
        assert_eq!(after(30, 0, quota.fixed_window()), 8);
        // A round trip that was an exception is forgotten in time.
        let mut state = State {
            round_trip: Duration::from_secs(10),
            ..State::default()
        };
        let asked = (0..100_000).map(|nth| {
            let now = Duration::from_millis(nth);
            assert!(!state.try_now(now));
            state.next(now, 100, &quota)
        });
        assert!(asked.into_iter().any(|size| size > 0));
    }

    #[test]
    fn only_a_key_in_demand_has_a_block() {
        let mut state = State::default();
        let mut asked = |millis| {
            let now = Duration::from_millis(millis);
            assert!(!state.try_now(now));
            state.next(now, 100, &Quota::per_hour(1000))
        };
        for nth in 0..100 {
            assert_eq!(asked(nth * 20), 0, "{nth}");
        }
        let sizes: Vec<_> = (0..8).map(|nth| asked(3000 + nth)).collect();
        assert_eq!(sizes, [0, 0, 0, 0, 0, 0, 0, 8]);
        // Nobody else waits for what was refused.
        state.renew(None, Duration::from_millis(3010));
        let mut asked = |millis| {
            let now = Duration::from_millis(millis);
            assert!(!state.try_now(now));
            state.next(now, 100, &Quota::per_hour(1000))
        };
        assert!((0..500).all(|nth| asked(3010 + nth) == 0));
        let later: Vec<_> = (0..8).map(|nth| asked(4100 + nth)).collect();
        assert_eq!(later, [0, 0, 0, 0, 0, 0, 0, 8]);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut recent = Recent::default();
        for key in 0..100_000 {
            recent.insert(key, key);
            assert_eq!(recent.get(&0).copied(), Some(0), "it is in use");
        }
        assert!(recent.young.len() + recent.old.len() <= MAX_KEYS);
        assert!(recent.get(&99_000).is_some());
        assert!(recent.get(&50_000).is_none());
    }
}
