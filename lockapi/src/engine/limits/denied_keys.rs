//! Keys that were refused recently: their rows are read before permits are taken.

use std::sync::PoisonError;

use rustc_hash::FxHashSet;

use crate::limit::{Outcome, RawDecision};
use crate::sync::{Mutex, MutexGuard};

/// The most keys that are remembered.
const MAX_KEYS: usize = 10_000;

/// The keys, by their hashes: to look without need does no harm.
#[derive(Default)]
pub(super) struct DeniedKeys(Mutex<FxHashSet<u64>>);

impl DeniedKeys {
    pub(super) fn contains(&self, key: u64) -> bool {
        let keys = self.lock();
        !keys.is_empty() && keys.contains(&key)
    }

    /// Takes note of the answer for a key.
    pub(super) fn note(&self, key: u64, decided: &RawDecision) {
        let mut keys = self.lock();
        if decided.outcome == Outcome::Refused {
            if keys.len() >= MAX_KEYS {
                keys.clear();
            }
            keys.insert(key);
        } else if !keys.is_empty() {
            keys.remove(&key);
        }
    }

    fn lock(&self) -> MutexGuard<'_, FxHashSet<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
