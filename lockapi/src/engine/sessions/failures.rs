//! What becomes of locks and callers when a session or a lane ends.

use super::lines::Lines;
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
            .filter(|(_, slot)| slot.session() == Some(session))
            .map(|(lock, _)| *lock)
            .collect();
        for lock in lost_here {
            lose(&mut state, lock, &mut news);
            Self::released(&mut state, lock);
        }
        for request in asked {
            match request {
                Request::Release { lock, reply, .. } => {
                    news.releases
                        .extend(reply.map(|reply| (reply, Err(lost()))));
                    Self::released(&mut state, lock);
                }
                Request::Try {
                    lock,
                    way,
                    again: false,
                } => {
                    let again = true;
                    Self::request(&mut state, 0, Request::Try { lock, way, again });
                }
                Request::Try {
                    lock, again: true, ..
                } => refuse(&mut state, lock, failure, &mut news),
                Request::Look { lock } => self.looked(&mut state, lock, true, &mut news),
            }
        }
        for request in queued {
            match request {
                Request::Release { lock, reply, .. } => {
                    news.releases
                        .extend(reply.map(|reply| (reply, Err(lost()))));
                    Self::released(&mut state, lock);
                }
                Request::Try { .. } | Request::Look { .. } => {
                    state.sessions[session].requests.push(request);
                }
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
                Request::Release { lock, reply, .. } => {
                    news.releases
                        .extend(reply.map(|reply| (reply, Err(lost()))));
                    Self::released(&mut state, lock);
                }
                Request::Look { lock } => self.looked(&mut state, lock, true, &mut news),
            }
        }
        drop(state);
        news.tell();
    }

    /// Fails everybody who waits for a lock.
    pub(crate) fn refuse_lock(&self, lock: LockId, failure: &Failure) {
        let mut news = News::default();
        refuse(&mut self.lock(), lock, failure, &mut news);
        news.tell();
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
        state.lines = Lines::default();
        for (_, slot) in state.slots.drain() {
            match slot.phase {
                Phase::Held(held) => news.lose(&held.hold),
                Phase::Shared(shared) => shared.holds.iter().for_each(|(hold, _)| news.lose(hold)),
                _ => {}
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

/// Whoever holds the lock has lost it.
fn lose(state: &mut State, lock: LockId, news: &mut News) {
    let Some(slot) = state.slots.get_mut(&lock) else {
        return;
    };
    match std::mem::replace(&mut slot.phase, Phase::Releasing) {
        Phase::Held(held) => {
            news.lose(&held.hold);
            state.lines.dropped(held.line, lock);
        }
        Phase::Shared(shared) => {
            for (hold, line) in &shared.holds {
                news.lose(hold);
                state.lines.dropped(*line, lock);
            }
        }
        _ => {}
    }
}

fn refuse(state: &mut State, lock: LockId, failure: &Failure, news: &mut News) {
    if let Some(slot) = state.slots.remove(&lock) {
        for waiter in slot.queue {
            news.grants.push((waiter.reply, Err(failure.error("lock"))));
        }
    }
}
