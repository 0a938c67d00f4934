//! How often locks were not free when they were requested, by key.
//!
//! What is free costs nothing here: a counter is looked for when a lock is first not free, and then
//! kept by the handle of the lock.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use rustc_hash::FxBuildHasher;

use crate::admin::Contention;
use crate::key::Key;
use crate::lease::micros;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// How many keys without a handle are counted at most.
const KEYS: usize = 10_000;

/// The counters of a backend.
#[derive(Default)]
pub(crate) struct Contended(Mutex<Known>);

#[derive(Default)]
struct Known {
    keys: HashMap<(bool, Key), Arc<Counters>, FxBuildHasher>,
    /// How many there may be before some are removed.
    room: usize,
}

#[derive(Default)]
struct Counters {
    waits: AtomicU64,
    waited: AtomicU64,
    hand_overs: AtomicU64,
    refusals: AtomicU64,
    timeouts: AtomicU64,
}

impl Contended {
    /// The counters of keys, or of one key, the longest waited for first.
    pub(crate) fn list(&self, key: Option<&Key>, most: usize) -> Vec<Contention> {
        let known = self.lock();
        let wanted = known.keys.iter();
        let wanted = wanted.filter(|((_, one), _)| key.is_none_or(|key| key == one));
        let mut list: Vec<_> = wanted
            .map(|((leased, key), counters)| counters.read(key, *leased))
            .collect();
        drop(known);
        list.sort_by(|one, other| {
            let rank = |one: &Contention| (one.waited, one.waits, one.refusals, one.timeouts);
            rank(other)
                .cmp(&rank(one))
                .then_with(|| (&one.key, one.leased).cmp(&(&other.key, other.leased)))
        });
        list.truncate(most);
        list
    }

    fn of(&self, key: &Key, leased: bool) -> Arc<Counters> {
        let mut known = self.lock();
        if known.keys.len() >= known.room.max(KEYS) {
            known.make_room();
        }
        let counters = known.keys.entry((leased, key.clone())).or_default();
        Arc::clone(counters)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Forgets the less contended half of the keys that no handle counts for: a handle would go on
    /// counting for nobody.
    fn make_room(&mut self) {
        let unused = |counters: &Arc<Counters>| Arc::strong_count(counters) == 1;
        let of_unused = self.keys.values().filter(|one| unused(one));
        let mut events: Vec<u64> = of_unused.map(|one| one.events()).collect();
        if !events.is_empty() {
            let middle = events.len() / 2;
            let (_, &mut median, _) = events.select_nth_unstable(middle);
            // Of those that are like the one in the middle, no more than it takes.
            let mut like = middle + 1 - events.iter().filter(|one| **one < median).count();
            self.keys.retain(|_, one| {
                let (used, events) = (!unused(one), one.events());
                let alike = !used && events == median && like > 0;
                like -= usize::from(alike);
                used || events > median || events == median && !alike
            });
        }
        self.room = KEYS.max(2 * self.keys.len());
    }
}

impl Counters {
    fn events(&self) -> u64 {
        let all = [&self.waits, &self.refusals, &self.timeouts];
        all.iter().map(|one| one.load(Ordering::Relaxed)).sum()
    }

    fn read(&self, key: &Key, leased: bool) -> Contention {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Contention {
            key: key.to_string(),
            leased,
            waits: read(&self.waits),
            waited: Duration::from_micros(read(&self.waited)),
            hand_overs: read(&self.hand_overs),
            refusals: read(&self.refusals),
            timeouts: read(&self.timeouts),
        }
    }
}

/// What a handle counts with.
pub(crate) struct ContentionCounter {
    contended: Arc<Contended>,
    leased: bool,
    counters: OnceLock<Arc<Counters>>,
}

impl ContentionCounter {
    pub(crate) fn new(contended: &Arc<Contended>, leased: bool) -> Self {
        Self {
            contended: Arc::clone(contended),
            leased,
            counters: OnceLock::new(),
        }
    }

    /// It was granted after a wait.
    pub(crate) fn waited(&self, key: &Key, time: Duration, handed_over: bool) {
        let counters = self.counters(key);
        counters.waits.fetch_add(1, Ordering::Relaxed);
        let time = micros(time).max(0).unsigned_abs();
        counters.waited.fetch_add(time, Ordering::Relaxed);
        if handed_over {
            counters.hand_overs.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// It was not granted to a caller that does not wait.
    pub(crate) fn refused(&self, key: &Key) {
        self.counters(key).refusals.fetch_add(1, Ordering::Relaxed);
    }

    /// It was not granted in time.
    pub(crate) fn timed_out(&self, key: &Key) {
        self.counters(key).timeouts.fetch_add(1, Ordering::Relaxed);
    }

    fn counters(&self, key: &Key) -> &Counters {
        self.counters
            .get_or_init(|| self.contended.of(key, self.leased))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_few_and_the_contended_ones_stay() {
        let contended = Arc::<Contended>::default();
        let open = ContentionCounter::new(&contended, false);
        let quiet = Key::from("open");
        open.refused(&quiet);
        let hot = Key::from("hot");
        let counting = ContentionCounter::new(&contended, false);
        (0..10).for_each(|_| counting.refused(&hot));
        drop(counting);
        for n in 0..5 * KEYS {
            let key = Key::from(format!("key {n}"));
            ContentionCounter::new(&contended, false).refused(&key);
        }
        let all = contended.list(None, usize::MAX);
        assert!(all.len() <= KEYS + 1, "{} keys", all.len());
        assert_eq!((&*all[0].key, all[0].refusals), ("hot", 10));
        // Its handle is open, so that it goes on counting where it is seen.
        open.refused(&quiet);
        assert_eq!(contended.list(Some(&quiet), 1)[0].refusals, 2);
    }

    #[test]
    fn keys_with_handles_are_all_counted() {
        let contended = Arc::<Contended>::default();
        let open: Vec<_> = (0..3 * KEYS)
            .map(|n| {
                let (key, counting) = (
                    Key::from(format!("{n}")),
                    ContentionCounter::new(&contended, n % 2 == 0),
                );
                counting.waited(&key, Duration::from_millis(3), n % 2 == 1);
                (key, counting)
            })
            .collect();
        assert_eq!(contended.list(None, usize::MAX).len(), open.len());
        let one = &contended.list(Some(&open[1].0), 9)[0];
        assert_eq!((one.waits, one.hand_overs, one.leased), (1, 1, false));
        assert_eq!(one.waited, Duration::from_millis(3));
    }
}
