//! Telling a worker to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Tells workers to stop; clones are one and the same.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<Flag>);

#[derive(Debug, Default)]
struct Flag {
    set: AtomicBool,
    changed: Notify,
}

impl Stop {
    /// Not yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Tells it; more than once is the same.
    pub fn stop(&self) {
        self.0.set.store(true, Ordering::Release);
        self.0.changed.notify_waiters();
    }

    /// Whether it was told.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.set.load(Ordering::Acquire)
    }

    /// Returns once it was told: for [`Worker::run`](super::Worker::run).
    ///
    /// # Cancel safety
    /// Safe to drop and to call again.
    pub async fn stopped(&self) {
        loop {
            // Created before the flag is read, so that a call in between still wakes it.
            let changed = self.0.changed.notified();
            if self.is_stopped() {
                return;
            }
            changed.await;
        }
    }
}
