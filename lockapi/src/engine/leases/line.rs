//! Where the callers of this process stand who were told to wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;

/// What is waited for: a key and the first of its slots.
type Place = (Arc<str>, i64);

/// The lines before keys. Only the first in a line asks, so they are served in their order.
#[derive(Default)]
pub(crate) struct Lines(Mutex<HashMap<Place, Line>>);

struct Line {
    /// Whoever has it is first.
    turn: Arc<Semaphore>,
    standing: usize,
}

/// Somebody who stands in a line, until this is dropped.
pub(crate) struct Standing<'a> {
    lines: &'a Lines,
    place: Place,
    turn: Arc<Semaphore>,
}

impl Lines {
    /// Whether nobody stands there.
    pub(crate) fn is_empty(&self, key: &Arc<str>, slot: i64) -> bool {
        !self.lock().contains_key(&(Arc::clone(key), slot))
    }

    /// Stands at the end.
    pub(crate) fn stand(&self, key: &Arc<str>, slot: i64) -> Standing<'_> {
        let place = (Arc::clone(key), slot);
        let mut lines = self.lock();
        let line = lines.entry(place.clone()).or_insert_with(|| Line {
            turn: Arc::new(Semaphore::new(1)),
            standing: 0,
        });
        line.standing += 1;
        Standing {
            lines: self,
            place,
            turn: Arc::clone(&line.turn),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Place, Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Standing<'_> {
    /// Runs `work` once everybody who came before has left.
    pub(crate) async fn first<T>(&self, work: impl Future<Output = T>) -> T {
        // It is never closed: that would let everybody in at once.
        let _turn = self.turn.acquire().await;
        work.await
    }
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        let mut lines = self.lines.lock();
        if let Some(line) = lines.get_mut(&self.place) {
            line.standing -= 1;
            if line.standing == 0 {
                lines.remove(&self.place);
            }
        }
    }
}
