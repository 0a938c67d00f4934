//! A lock that was granted to a caller.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::Locks;
use super::table::Granted;
use crate::error::Result;
use crate::hold::Hold;
use crate::key::LockId;

/// A lock that was granted. Dropping it releases it.
pub(crate) struct Grant {
    locks: Option<Arc<Locks>>,
    lock: LockId,
    id: u64,
    pub(crate) hold: Arc<Hold>,
    pub(crate) fence: i64,
    pub(crate) mark: i64,
    /// How long the caller waited, if the lock was not free.
    pub(crate) waited: Option<Duration>,
}

impl Grant {
    pub(super) fn new(locks: Option<Arc<Locks>>, granted: Granted<Arc<Hold>>) -> Self {
        let Granted {
            lock,
            id,
            hold,
            fence,
            mark,
            waited,
        } = granted;
        Self {
            locks,
            lock,
            id,
            hold,
            fence,
            mark,
            waited,
        }
    }

    /// Releases it; the receiver gets an error if it was no longer held.
    pub(crate) fn release(mut self) -> oneshot::Receiver<Result<()>> {
        let (reply, released) = oneshot::channel();
        if let Some(locks) = self.locks.take() {
            locks.release(self.lock, self.id, &self.hold, Some(reply));
        }
        released
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(locks) = self.locks.take() {
            locks.release(self.lock, self.id, &self.hold, None);
        }
    }
}
