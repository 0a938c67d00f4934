//! Whether something is still held, shared by a guard and the engine.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

const HELD: u8 = 0;
const LOST: u8 = 1;
const RELEASED: u8 = 2;

/// One acquisition: held, then either released or lost, once.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    state: AtomicU8,
    /// When it ends unless it is extended, in microseconds of the clock of its backend; zero is never.
    deadline: AtomicU64,
    ended: Notify,
}

impl Hold {
    /// It ends then, unless it is extended.
    pub(crate) fn set_deadline(&self, deadline: Duration) {
        let micros = u64::try_from(deadline.as_micros()).unwrap_or(u64::MAX);
        self.deadline.store(micros.max(1), Ordering::Release);
    }

    /// Whether it is lost by a clock that shows `now`: the timer's thread may not have had its turn yet.
    pub(crate) fn is_lost_at(&self, now: Duration) -> bool {
        let deadline = self.deadline.load(Ordering::Acquire);
        let over = deadline > 0 && now >= Duration::from_micros(deadline);
        self.is_lost() || (over && self.is_held())
    }

    pub(crate) fn is_held(&self) -> bool {
        self.state.load(Ordering::Acquire) == HELD
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.state.load(Ordering::Acquire) == LOST
    }

    /// Marks it lost, unless it had ended before. [`announce`](Self::announce) must follow, outside
    /// of any lock: it runs wakers, which are other people's code.
    pub(crate) fn lose(&self) {
        self.end(LOST);
    }

    pub(crate) fn announce(&self) {
        self.ended.notify_waiters();
    }

    /// Answers whether this call was the one that ended it.
    pub(crate) fn release(&self) -> bool {
        self.end(RELEASED)
    }

    fn end(&self, state: u8) -> bool {
        self.state
            .compare_exchange(HELD, state, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Returns once it is lost.
    pub(crate) async fn lost(&self) {
        loop {
            // Created before the state is read, so an end in between still wakes it.
            let ended = self.ended.notified();
            if self.is_lost() {
                return;
            }
            ended.await;
        }
    }
}
