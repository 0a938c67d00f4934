//! Whose turn it is to wait for a limit.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedMutexGuard;

use crate::error::{Error, ErrorKind, Result};
use crate::limit::MAX_WAITING;

type Door = Arc<tokio::sync::Mutex<()>>;

/// One queue for each key, in the order of arrival.
#[derive(Default)]
pub(super) struct Turns {
    doors: Mutex<HashMap<String, Door>>,
    waiting: AtomicUsize,
}

impl Turns {
    /// Waits for the turn of a key; it ends with the value.
    pub(super) async fn wait<'a>(&'a self, key: &'a str) -> Result<Turn<'a>> {
        let queued = Queued::enter(self, key)?;
        let guard = Arc::clone(&queued.door).lock_owned().await;
        Ok(Turn {
            _guard: guard,
            _queued: queued,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Door>> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who holds it asks, the others of its key wait.
pub(super) struct Turn<'a> {
    _guard: OwnedMutexGuard<()>,
    _queued: Queued<'a>,
}

struct Queued<'a> {
    turns: &'a Turns,
    key: &'a str,
    door: Door,
}

impl<'a> Queued<'a> {
    fn enter(turns: &'a Turns, key: &'a str) -> Result<Self> {
        if turns.waiting.fetch_add(1, Ordering::Relaxed) >= MAX_WAITING {
            turns.waiting.fetch_sub(1, Ordering::Relaxed);
            let message = format!("{MAX_WAITING} calls wait already");
            return Err(Error::new(ErrorKind::Capacity, "until_ready", message));
        }
        let door = Arc::clone(turns.lock().entry(key.to_owned()).or_default());
        Ok(Self { turns, key, door })
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.turns.waiting.fetch_sub(1, Ordering::Relaxed);
        let mut doors = self.turns.lock();
        // The map has one, and this value the other.
        if Arc::strong_count(&self.door) == 2 {
            doors.remove(self.key);
        }
    }
}
