//! A call that waits for its answer.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{Granted, Locks};
use crate::key::LockId;

/// An acquisition under way. Dropping it takes the caller out of the queue.
pub(crate) struct Pending {
    locks: Arc<Locks>,
    lock: LockId,
    id: u64,
    answer: oneshot::Receiver<Granted>,
    answered: bool,
}

impl Pending {
    pub(super) fn new(
        locks: Arc<Locks>,
        lock: LockId,
        id: u64,
        answer: oneshot::Receiver<Granted>,
    ) -> Self {
        Self {
            locks,
            lock,
            id,
            answer,
            answered: false,
        }
    }

    /// The answer: a grant, `None` when the lock is held, or an error.
    pub(crate) async fn answer(mut self) -> Option<Granted> {
        let answer = (&mut self.answer).await.ok();
        self.answered = true;
        answer
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.answered {
            // A grant that is under way comes back when its sender finds this closed.
            self.answer.close();
            self.locks.leave(self.lock, self.id);
        }
    }
}
