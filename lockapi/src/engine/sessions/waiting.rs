//! What the lanes of sessions that wait ask.

use std::time::Duration;

use super::{News, Patience, SLICE, Sessions};
use crate::key::LockId;

impl Sessions {
    /// Takes a lock to wait for, and makes the session busy with it.
    pub(crate) fn take_wanted(&self) -> Option<LockId> {
        let mut state = self.lock();
        let lock = state.wanted.pop_front()?;
        state.busy += 1;
        Some(lock)
    }

    /// How long to wait for the lock in the server's queue next; `None` gives it up because
    /// nobody in this process waits for it any more.
    pub(crate) fn slice(&self, lock: LockId) -> Option<Duration> {
        let now = self.keeper.now();
        let mut state = self.lock();
        let slot = state.slots.get_mut(&lock)?;
        slot.prune();
        let longest = slot.queue.iter().map(|waiter| match waiter.patience {
            Patience::None => Duration::ZERO,
            Patience::Until(at) => at.saturating_sub(now),
            Patience::Forever => SLICE,
        });
        let Some(longest) = longest.max() else {
            state.slots.remove(&lock);
            return None;
        };
        Some(longest.clamp(Duration::from_millis(1), SLICE))
    }

    /// The session that waited was granted the lock.
    pub(crate) fn waited(&self, session: usize, lock: LockId, fence: i64) {
        let mut news = News::default();
        let now = self.keeper.now();
        let mut state = self.lock();
        self.taken(&mut state, session, lock, fence, now, &mut news);
        drop(state);
        news.tell();
    }

    /// The session no longer waits for, or holds, the lock it was busy with.
    pub(crate) fn idle(&self) {
        self.lock().busy -= 1;
    }

    /// A waiting session has had nothing to do; answers whether its lane may end.
    pub(crate) fn retire(&self, session: usize) -> bool {
        let mut state = self.lock();
        let retired = state.wanted.is_empty() && state.sessions[session].requests.is_empty();
        if retired {
            state.sessions[session].running = false;
        }
        retired
    }
}
