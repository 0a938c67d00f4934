//! The rows on which this process has had conflicts.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::OwnedMutexGuard;

use crate::engine::{Clock, Timer};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::wait::unless;

/// A row stays hot for so long after the last conflict on it, or the last wait for a turn.
const HOT: Duration = Duration::from_secs(1);
/// Who keeps its turn for so long is no longer waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// So many rows are remembered.
const MOST: usize = 4096;

/// Rows that writers have met on, each with the turn of those in this process.
#[derive(Debug, Default)]
pub(super) struct Contention(Mutex<HashMap<String, ContendedRow>>);

#[derive(Debug)]
struct ContendedRow {
    hot_until: Instant,
    turn: Arc<WriterLock>,
}

/// The turn of a row, and how often it was taken.
#[derive(Debug, Default)]
struct WriterLock {
    lock: Arc<tokio::sync::Mutex<()>>,
    taken: AtomicU64,
}

impl WriterLock {
    /// Waits until `until`, and as long as the turn is passed on.
    async fn wait(&self, until: Instant) -> Waited {
        let mut lock = pin!(Arc::clone(&self.lock).lock_owned());
        loop {
            let taken = self.taken.load(Ordering::Relaxed);
            let left = until.saturating_duration_since(Instant::now());
            if let Some(guard) = unless(sleep(left.min(PATIENCE)), lock.as_mut()).await {
                self.taken.fetch_add(1, Ordering::Relaxed);
                return Waited::Taken(guard);
            }
            if Instant::now() >= until {
                return Waited::Late;
            }
            if taken == self.taken.load(Ordering::Relaxed) {
                return Waited::Kept;
            }
        }
    }
}

enum Waited {
    Taken(OwnedMutexGuard<()>),
    /// Somebody keeps it.
    Kept,
    /// The time is over.
    Late,
}

/// The turns that a writer has, on the rows that it writes.
#[derive(Debug, Default)]
pub(super) struct WriterLocks {
    _held: Vec<OwnedMutexGuard<()>>,
    /// Whether any of the rows is hot.
    pub(super) hot: bool,
}

impl ContendedRow {
    /// Whether a writer has the turn, or waits for it.
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.turn) > 1 || Arc::strong_count(&self.turn.lock) > 1
    }
}

impl Contention {
    /// Writers of these keys have met.
    pub(super) fn mark_contended(&self, keys: &[String]) {
        let now = Instant::now();
        let mut rows = self.lock();
        if rows.len() >= MOST {
            rows.retain(|_, row| row.hot_until > now || row.is_used());
        }
        for key in keys {
            if let Some(row) = rows.get_mut(key) {
                row.hot_until = now + HOT;
            } else if rows.len() < MOST {
                let row = ContendedRow {
                    hot_until: now + HOT,
                    turn: Arc::default(),
                };
                rows.insert(key.clone(), row);
            }
        }
    }

    /// The turns of those keys that are hot, in their order.
    fn turns(&self, keys: &[String]) -> Vec<Arc<WriterLock>> {
        let now = Instant::now();
        let rows = self.lock();
        let hot = |key| rows.get(key).filter(|row| row.hot_until > now);
        keys.iter()
            .filter_map(hot)
            .map(|row| Arc::clone(&row.turn))
            .collect()
    }

    /// Waits for the turn on those keys that are hot, in the order of the keys; `None` when it has not
    /// come until `until`.
    ///
    /// Work that is begun inside other work can wait for a turn while it keeps another, and so in a
    /// cycle. Turns only spare the server conflicts, so whoever waits for one that is not passed on
    /// goes on without it.
    pub(super) async fn queue(&self, keys: &[String], until: Instant) -> Option<WriterLocks> {
        let mut held = Vec::new();
        let turns = self.turns(keys);
        let hot = !turns.is_empty();
        for turn in turns {
            if let Ok(guard) = Arc::clone(&turn.lock).try_lock_owned() {
                turn.taken.fetch_add(1, Ordering::Relaxed);
                held.push(guard);
                continue;
            }
            self.mark_contended(keys);
            match turn.wait(until).await {
                Waited::Taken(guard) => held.push(guard),
                Waited::Kept => {}
                Waited::Late => return None,
            }
        }
        Some(WriterLocks { _held: held, hot })
    }

    fn lock(&self) -> crate::sync::MutexGuard<'_, HashMap<String, ContendedRow>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Without a runtime; one thread of the process serves all pauses.
pub(super) async fn sleep(pause: Duration) {
    static KEEPER: OnceLock<Option<Timer>> = OnceLock::new();
    let timer = KEEPER.get_or_init(|| Timer::start(&Clock::real()).ok());
    match timer {
        Some(timer) => timer.sleep(pause).await,
        // No thread can be started: a short pause does less harm than none.
        None => std::thread::sleep(pause),
    }
}
