//! What the lanes of sessions that wait ask.

use std::time::Duration;

use super::{News, Patience, SLICE, Sessions};
use crate::key::LockId;
use crate::mutex::{Stepped, Way};

/// One wait in the server's queue.
pub(crate) struct Slice {
    pub(crate) way: Way,
    pub(crate) time: Duration,
    /// What is held by lines of work that wait for this.
    pub(crate) holding: Vec<LockId>,
}

impl Sessions {
    /// Takes a lock to wait for, and makes the session busy with it.
    pub(crate) fn take_wanted(&self) -> Option<LockId> {
        let mut state = self.lock();
        let lock = state.wanted.pop_front()?;
        state.busy += 1;
        Some(lock)
    }

    /// How to wait for the lock in the server's queue next; `None` gives it up because nobody in
    /// this process waits for it any more.
    pub(crate) fn slice(&self, lock: LockId) -> Option<Slice> {
        let now = self.keeper.now();
        let mut state = self.lock();
        let slot = state.slots.get_mut(&lock)?;
        let Some(way) = slot.wanted() else {
            state.slots.remove(&lock);
            return None;
        };
        let longest = slot.queue.iter().map(|waiter| match waiter.patience {
            Patience::None => Duration::ZERO,
            Patience::Until(at) => at.saturating_sub(now),
            Patience::Forever => SLICE,
        });
        let longest = longest.max().unwrap_or(SLICE);
        let waiting = slot.queue.iter().filter(|waiter| !waiter.reply.is_closed());
        let lines: Vec<_> = waiting.filter_map(|waiter| waiter.line).collect();
        let mut holding: Vec<LockId> = lines
            .into_iter()
            .flat_map(|line| state.held_behind(line))
            .collect();
        holding.sort_unstable();
        holding.dedup();
        // Whoever waits for the other looks for a circle between two slices, not at the same time.
        let most = if holding.is_empty() {
            SLICE
        } else {
            SLICE.mul_f64(0.4 + 0.4 * fastrand::f64())
        };
        Some(Slice {
            way,
            time: longest.clamp(Duration::from_millis(1), most),
            holding,
        })
    }

    /// The session that waited was granted the lock.
    pub(crate) fn waited(&self, session: usize, lock: LockId, taken: Stepped) {
        let mut news = News::default();
        let now = self.keeper.now();
        let mut state = self.lock();
        self.taken(&mut state, session, lock, taken, now, &mut news);
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
