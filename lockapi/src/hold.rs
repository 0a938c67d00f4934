//! Whether something is still held, shared by a guard and the engine.

use std::time::Duration;

use crate::engine::contained;
use crate::sync::Notify;
use crate::sync::atomic::{AtomicU8, AtomicU64, Ordering};

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

    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_micros(self.deadline.load(Ordering::Acquire))
    }

    /// How long it is surely held after `now`, unless it is extended.
    pub(crate) fn remaining(&self, now: Duration) -> Duration {
        if self.is_held() {
            self.deadline().saturating_sub(now)
        } else {
            Duration::ZERO
        }
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
            contained(ended).await;
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::engine::is_woken_beside_a_panic;

    #[test]
    fn waker_that_panics_keeps_no_holder_from_being_told() {
        let hold = Hold::default();
        let waits = (hold.lost(), hold.lost());
        assert!(is_woken_beside_a_panic(waits.0, waits.1, || hold.announce()));
    }
}

#[cfg(all(test, shuttle))]
mod interleavings {
    use std::sync::Arc;

    use super::*;
    use crate::sync::{explore, thread};

    #[test]
    fn whoever_waits_for_the_loss_is_woken() {
        explore(|| {
            let hold = Arc::new(Hold::default());
            let waiting = Arc::clone(&hold);
            let waiter = thread::spawn(move || shuttle::future::block_on(waiting.lost()));
            hold.lose();
            hold.announce();
            waiter.join().unwrap();
        });
    }

    #[test]
    fn it_ends_once() {
        explore(|| {
            let hold = Arc::new(Hold::default());
            let losing = Arc::clone(&hold);
            let timer = thread::spawn(move || losing.lose());
            let released = hold.release();
            timer.join().unwrap();
            assert_ne!(released, hold.is_lost());
        });
    }
}
