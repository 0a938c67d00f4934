//! Which rows this process has met others on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

/// A row stays hot for so long after the last conflict on it, or the last wait for a turn.
const HOT: Duration = Duration::from_secs(1);
/// So many rows are remembered.
const MOST: usize = 4096;

/// Rows that writers have met on, each with the turn of those in this process.
#[derive(Debug, Default)]
pub(super) struct Contention(Mutex<HashMap<String, Spot>>);

#[derive(Debug)]
struct Spot {
    hot_until: Instant,
    turn: Arc<Turn<()>>,
}

impl Contention {
    /// Writers of these keys have met.
    pub(super) fn heat(&self, keys: &[String]) {
        let now = Instant::now();
        let mut spots = self.lock();
        if spots.len() >= MOST {
            spots.retain(|_, spot| spot.hot_until > now || Arc::strong_count(&spot.turn) > 1);
        }
        for key in keys {
            if let Some(spot) = spots.get_mut(key) {
                spot.hot_until = now + HOT;
            } else if spots.len() < MOST {
                let spot = Spot {
                    hot_until: now + HOT,
                    turn: Arc::default(),
                };
                spots.insert(key.clone(), spot);
            }
        }
    }

    /// The turns of those keys that are hot, in their order.
    fn turns(&self, keys: &[String]) -> Vec<Arc<Turn<()>>> {
        let now = Instant::now();
        let spots = self.lock();
        let hot = |key| spots.get(key).filter(|spot| spot.hot_until > now);
        keys.iter()
            .filter_map(hot)
            .map(|spot| Arc::clone(&spot.turn))
            .collect()
    }

    /// Waits for the turn on those keys that are hot; keys are in order, so that nobody waits in a
    /// circle.
    pub(super) async fn queue(&self, keys: &[String]) -> Vec<OwnedMutexGuard<()>> {
        let mut held = Vec::new();
        for turn in self.turns(keys) {
            if let Ok(guard) = Arc::clone(&turn).try_lock_owned() {
                held.push(guard);
            } else {
                self.heat(keys);
                held.push(turn.lock_owned().await);
            }
        }
        held
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Spot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
