//! Locks that several callers share.
//!
//! All who share a lock in this process have it once at the server. Callers are served in the order
//! of arrival: those who come behind one that wants the lock alone wait until it was served. Others
//! who wait at the server are not seen from here, so while the lock is shared the server is asked
//! now and then; when somebody waits, nobody else is let in.

use std::sync::Arc;

use super::state::{Door, News, Phase, Shared, State};
use super::{Grant, MAX_HELD, Request, Sessions, lost, settling};
use crate::error::Result;
use crate::hold::Hold;
use crate::key::LockId;
use crate::mutex::Way;
use tokio::sync::oneshot;

impl Sessions {
    /// A session has taken the lock to share it: lets those in who came before any that want it
    /// alone.
    pub(super) fn share(&self, state: &mut State, session: usize, lock: LockId, news: &mut News) {
        let Some(slot) = state.slots.get_mut(&lock) else {
            return;
        };
        slot.phase = Phase::Shared(Shared {
            session,
            since: self.keeper.now(),
            holds: Vec::new(),
            door: Door::Open(self.keeper.now() + MAX_HELD),
        });
        state.sessions[session].held += 1;
        self.admit(state, lock, news);
        // They may all have left meanwhile.
        let slot = state.slots.get(&lock);
        if slot.is_some_and(
            |slot| matches!(&slot.phase, Phase::Shared(shared) if shared.holds.is_empty()),
        ) {
            Self::let_go(state, session, lock, Way::Shared, None);
        }
    }

    /// Lets those in who are in front and want to share a lock that is shared.
    pub(super) fn admit(&self, state: &mut State, lock: LockId, news: &mut News) {
        let now = self.keeper.now();
        let Some(slot) = state.slots.get_mut(&lock) else {
            return;
        };
        let mut first = slot.wanted();
        let Phase::Shared(shared) = &mut slot.phase else {
            return;
        };
        let is_open = match shared.door {
            Door::Open(until) => now < until || shared.holds.is_empty(),
            Door::Asked | Door::Shut => false,
        };
        if first == Some(Way::Shared) && !is_open {
            if shared.door != Door::Shut {
                if shared.door != Door::Asked {
                    shared.door = Door::Asked;
                    Self::request(state, 0, Request::Look { lock });
                }
                return;
            }
            first = None;
        }
        while first == Some(Way::Shared) {
            let (Phase::Shared(shared), Some(next)) = (&mut slot.phase, slot.queue.pop_front())
            else {
                return;
            };
            let hold: Arc<Hold> = Arc::default();
            shared.holds.push((Arc::clone(&hold), next.line));
            state.lines.holds(next.line, lock);
            let grant = Grant {
                sessions: self.this.upgrade(),
                lock,
                hold,
                fence: 0,
                mark: state.sessions[shared.session].mark,
                waited: next.waited(now),
            };
            news.grants.push((next.reply, Ok(Some(grant))));
            first = slot.wanted();
        }
        settling::refuse_impatient(slot, news);
    }

    /// What the server said of those who wait for a lock that is shared here.
    pub(super) fn looked(&self, state: &mut State, lock: LockId, awaited: bool, news: &mut News) {
        let open = Door::Open(self.keeper.now() + MAX_HELD);
        if let Some(slot) = state.slots.get_mut(&lock)
            && let Phase::Shared(shared) = &mut slot.phase
            && shared.door == Door::Asked
        {
            shared.door = if awaited { Door::Shut } else { open };
            self.admit(state, lock, news);
        }
    }

    /// Ends one of the holds of a lock that is shared, and releases it with the last.
    pub(super) fn leave(
        state: &mut State,
        lock: LockId,
        hold: &Arc<Hold>,
        reply: Option<oneshot::Sender<Result<()>>>,
        news: &mut News,
    ) {
        let Some(slot) = state.slots.get_mut(&lock) else {
            return;
        };
        let Phase::Shared(shared) = &mut slot.phase else {
            return;
        };
        let at = shared
            .holds
            .iter()
            .position(|(one, _)| Arc::ptr_eq(one, hold));
        let Some(at) = at else {
            news.releases
                .extend(reply.map(|reply| (reply, Err(lost()))));
            return;
        };
        let (_, line) = shared.holds.swap_remove(at);
        state.lines.dropped(line, lock);
        if shared.holds.is_empty() {
            let session = shared.session;
            Self::let_go(state, session, lock, Way::Shared, reply);
        } else {
            news.releases.extend(reply.map(|reply| (reply, Ok(()))));
        }
    }
}
