//! Locks that several callers share.
//!
//! All who share a lock in this process have it once at the server. Callers are served in the order
//! of arrival: those who come behind one that wants the lock alone wait until it was served. Others
//! who wait at the server are not seen from here, so while the lock is shared the server is asked
//! now and then; when somebody waits, nobody else is let in.

use super::effects::{Answer, Effects, Granted, Reason};
use super::release::MAX_HELD;
use super::session::Command;
use super::slot::{Phase, Slot};
use super::{LockTable, Now};
use crate::engine::clock::Time;
use crate::key::LockId;
use crate::mutex::{LockMode, OwnerId};

/// A lock that callers share; all of them together have it once at the server.
pub(super) struct Shared<H> {
    pub(super) session: usize,
    pub(super) since: Time,
    pub(super) holds: Vec<Share<H>>,
    door: Door,
}

/// One of those who share a lock.
pub(super) struct Share<H> {
    pub(super) id: u64,
    pub(super) hold: H,
    pub(super) owner: Option<OwnerId>,
}

/// Whether further callers may share a lock that is shared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Door {
    /// Until then.
    Open(Time),
    /// The server is being asked whether others wait.
    Checking,
    /// Others wait: not before they had their turn; the server is asked again at this time.
    Shut(Time),
}

impl<W, H: Clone + Default, R> LockTable<W, H, R> {
    /// A session has taken the lock to share it: lets those in who came before any that want it
    /// alone.
    pub(super) fn share(
        &mut self,
        now: Now<'_>,
        session: usize,
        lock: LockId,
        effects: &mut Effects<W, H, R>,
    ) {
        let Some(slot) = self.slots.get_mut(&lock) else {
            return;
        };
        let at = now();
        slot.phase = Phase::Shared(Shared {
            session,
            since: at,
            holds: Vec::new(),
            door: Door::Open(at + MAX_HELD),
        });
        self.sessions[session].held += 1;
        self.sessions[session].granted_at = at;
        self.admit(now, lock, effects);
    }

    /// Lets those in who are in front and want to share a lock that is shared.
    pub(super) fn admit(&mut self, now: Now<'_>, lock: LockId, effects: &mut Effects<W, H, R>) {
        let now = now();
        let Some(slot) = self.slots.get_mut(&lock) else {
            return;
        };
        let first = slot.wanted();
        let Phase::Shared(shared) = &mut slot.phase else {
            return;
        };
        let is_open = match shared.door {
            Door::Open(until) => now < until || shared.holds.is_empty(),
            Door::Checking | Door::Shut(_) => false,
        };
        if first == Some(LockMode::Shared) && !is_open {
            match shared.door {
                Door::Checking => return,
                Door::Shut(until) if now < until => {
                    if self.polls.insert((until, lock)) {
                        self.arm(until, effects);
                    }
                }
                Door::Open(_) | Door::Shut(_) => {
                    shared.door = Door::Checking;
                    return self.command(0, Command::Look { lock }, None, effects);
                }
            }
        }
        if is_open {
            self.let_in(now, lock, effects);
        }
        if let Some(slot) = self.slots.get_mut(&lock) {
            slot.refuse_impatient(effects);
        }
    }

    fn let_in(&mut self, now: Time, lock: LockId, effects: &mut Effects<W, H, R>) {
        while let Some(Slot {
            phase: Phase::Shared(shared),
            queue,
            ..
        }) = self.slots.get_mut(&lock)
            && queue.wanted() == Some(LockMode::Shared)
            && let Some(next) = queue.pop()
        {
            self.last += 1;
            let share = Share {
                id: self.last,
                hold: H::default(),
                owner: next.owner,
            };
            let granted = Granted {
                lock,
                id: share.id,
                hold: share.hold.clone(),
                fence: 0,
                mark: self.sessions[shared.session].mark,
                waited: next.waited(now),
            };
            shared.holds.push(share);
            self.owners.unwait(&next, lock);
            self.owners.hold(next.owner, lock);
            effects.answer_waiter(next, Answer::Granted(granted));
        }
    }

    /// What the server said of those who wait for a lock that is shared here.
    pub(super) fn looked(
        &mut self,
        now: Now<'_>,
        lock: LockId,
        awaited: bool,
        effects: &mut Effects<W, H, R>,
    ) {
        if let Some(slot) = self.slots.get_mut(&lock)
            && let Phase::Shared(shared) = &mut slot.phase
            && shared.door == Door::Checking
        {
            let until = now() + MAX_HELD;
            shared.door = if awaited {
                Door::Shut(until)
            } else {
                Door::Open(until)
            };
            self.admit(now, lock, effects);
        }
    }

    /// Ends one of the holds of a lock that is shared, and releases it with the last.
    pub(super) fn end_share(
        &mut self,
        lock: LockId,
        hold: u64,
        reply: Option<R>,
        effects: &mut Effects<W, H, R>,
    ) {
        let Some(slot) = self.slots.get_mut(&lock) else {
            return;
        };
        let Phase::Shared(shared) = &mut slot.phase else {
            return;
        };
        let Some(at) = shared.holds.iter().position(|one| one.id == hold) else {
            return effects.released(reply, Err(Reason::Lost));
        };
        let share = shared.holds.swap_remove(at);
        self.owners.unhold(share.owner, lock);
        if shared.holds.is_empty() {
            let session = shared.session;
            self.let_go(session, lock, LockMode::Shared, reply, effects);
        } else {
            effects.released(reply, Ok(()));
        }
    }
}
