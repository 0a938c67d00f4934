//! What becomes of locks and callers when a session or a lane ends.

use super::{News, Phase, Request, Sessions, State, lost};
use crate::error::Failure;
use crate::key::LockId;

impl Sessions {
    /// The session is gone and its locks with it; what was asked of it is tried once more.
    pub(crate) fn session_lost(&self, session: usize, asked: Vec<Request>, failure: &Failure) {
        let mut news = News::default();
        let mut state = self.lock();
        let queued = std::mem::take(&mut state.sessions[session].requests);
        state.sessions[session].held = 0;
        let lost_here: Vec<LockId> = state
            .slots
            .iter()
            .filter_map(|(lock, slot)| match &slot.phase {
                Phase::Held(held) if held.session == session => {
                    news.lose(&held.hold);
                    Some(*lock)
                }
                _ => None,
            })
            .collect();
        for lock in lost_here {
            if let Some(slot) = state.slots.get_mut(&lock) {
                slot.phase = Phase::Releasing;
            }
            Self::released(&mut state, lock);
        }
        for request in asked {
            match request {
                Request::Release { lock, reply } => {
                    news.releases
                        .extend(reply.map(|reply| (reply, Err(lost()))));
                    Self::released(&mut state, lock);
                }
                Request::Try { lock, again: false } => {
                    Self::request(&mut state, 0, Request::Try { lock, again: true });
                }
                Request::Try { lock, again: true } => refuse(&mut state, lock, failure, &mut news),
            }
        }
        for request in queued {
            match request {
                Request::Release { lock, reply } => {
                    news.releases
                        .extend(reply.map(|reply| (reply, Err(lost()))));
                    Self::released(&mut state, lock);
                }
                Request::Try { .. } => state.sessions[session].requests.push(request),
            }
        }
        drop(state);
        news.tell();
    }

    /// Fails everybody who waits for the locks of these requests.
    pub(crate) fn refuse_all(&self, requests: Vec<Request>, failure: &Failure) {
        let mut news = News::default();
        let mut state = self.lock();
        for request in requests {
            match request {
                Request::Try { lock, .. } => refuse(&mut state, lock, failure, &mut news),
                Request::Release { lock, reply } => {
                    news.releases
                        .extend(reply.map(|reply| (reply, Err(lost()))));
                    Self::released(&mut state, lock);
                }
            }
        }
        drop(state);
        news.tell();
    }

    /// Fails everybody who waits for a lock.
    pub(crate) fn refuse_lock(&self, lock: LockId, failure: &Failure) {
        self.refuse_all(vec![Request::Try { lock, again: true }], failure);
    }

    /// Puts attempts back, to be sent one by one.
    pub(crate) fn put_back(&self, requests: Vec<Request>) {
        let mut state = self.lock();
        state.sessions[0].requests.splice(0..0, requests);
        Self::rouse(&mut state, 0);
    }

    /// A lane was dropped by its runtime: nothing is held and nothing can be locked any more.
    pub(crate) fn end(&self, failure: &Failure) {
        let mut news = News::default();
        let mut state = self.lock();
        state.ended = true;
        for (_, slot) in state.slots.drain() {
            if let Phase::Held(held) = slot.phase {
                news.lose(&held.hold);
            }
            for waiter in slot.queue {
                news.grants.push((waiter.reply, Err(failure.error("lock"))));
            }
        }
        for session in &mut state.sessions {
            for request in session.requests.drain(..) {
                if let Request::Release { reply, .. } = request {
                    news.releases
                        .extend(reply.map(|reply| (reply, Err(lost()))));
                }
            }
        }
        drop(state);
        news.tell();
    }
}

fn refuse(state: &mut State, lock: LockId, failure: &Failure, news: &mut News) {
    if let Some(slot) = state.slots.remove(&lock) {
        for waiter in slot.queue {
            news.grants.push((waiter.reply, Err(failure.error("lock"))));
        }
    }
}
