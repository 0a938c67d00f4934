//! A lock in the hands of a caller.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::Sessions;
use crate::error::Result;
use crate::hold::Hold;
use crate::key::LockId;

/// A lock that somebody was given. Dropping it releases it.
pub(crate) struct Grant {
    pub(super) sessions: Option<Arc<Sessions>>,
    pub(super) lock: LockId,
    pub(crate) hold: Arc<Hold>,
    pub(crate) fence: i64,
    pub(crate) mark: i64,
    /// How long the caller waited, if the lock was not free.
    pub(crate) waited: Option<Duration>,
}

impl Grant {
    /// Releases it; the receiver is told whether it was still held.
    pub(crate) fn release(mut self) -> oneshot::Receiver<Result<()>> {
        let (reply, released) = oneshot::channel();
        if let Some(sessions) = self.sessions.take() {
            sessions.release(self.lock, &self.hold, Some(reply));
        }
        released
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(sessions) = self.sessions.take() {
            sessions.release(self.lock, &self.hold, None);
        }
    }
}
