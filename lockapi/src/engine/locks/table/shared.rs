//! Locks that several callers share.
//!
//! All callers that share a lock in this process hold it once at the server. Callers are served in the
//! order of arrival: readers behind a writer wait until it was served. Other processes that wait at the
//! server are not visible from here, so while the lock is shared the server is queried now and then; if
//! there is a waiter, no further caller is admitted.

use std::time::Duration;

use rustc_hash::{FxHashMap, FxHashSet};

use super::effects::{Answer, Effects, Granted, Reason};
use super::release::MAX_HELD;
use super::session::Command;
use super::slot::{Phase, Slot, WaitPolicy};
use super::{LockTable, Now};
use crate::engine::clock::Time;
use crate::key::LockId;
use crate::mutex::{LockMode, OwnerId};

/// While a writer waits whose time ends, it is looked so often whether that is over.
const LOOK: Duration = Duration::from_secs(1);

/// A lock that callers share; all of them together have it once at the server.
pub(super) struct Shared<H> {
    pub(super) session: usize,
    pub(super) since: Time,
    pub(super) holds: Vec<Share<H>>,
    admission: Admission,
    /// When it is looked at again, because the time of a writer in front may be over.
    look_at: Option<Time>,
}

/// One of those who share a lock.
pub(super) struct Share<H> {
    pub(super) id: u64,
    pub(super) hold: H,
    pub(super) owner: Option<OwnerId>,
}

/// Whether further callers are admitted to a shared lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Admission {
    /// Until this time.
    Open(Time),
    /// The server is being queried for other waiters.
    Checking,
    /// Others wait: none is admitted before they had their turn; the server is queried again at this time.
    Closed(Time),
}

impl<W, H, R> LockTable<W, H, R> {
    /// The owners that wait for a lock that is shared only to share it, and are let in unless the server, which is being asked, tells
    /// of other waiters.
    pub(super) fn may_be_admitted(&self, lock: LockId) -> FxHashSet<OwnerId> {
        let is_asked = |slot: &&Slot<W, H>| match &slot.phase {
            Phase::Shared(shared) => shared.admission == Admission::Checking,
            _ => false,
        };
        let Some(slot) = self.slots.get(&lock).filter(is_asked) else {
            return FxHashSet::default();
        };
        // How many branches of an owner wait to share it, and how many wait for it at all.
        let mut branches = FxHashMap::<OwnerId, (usize, usize)>::default();
        let readers = slot.queue.readers_in_front();
        let readers = readers.filter(|waiter| waiter.policy != WaitPolicy::NoWait);
        for owner in readers.filter_map(|waiter| waiter.owner) {
            branches.entry(owner).or_default().0 += 1;
        }
        for owner in slot.queue.owners() {
            if let Some((_, all)) = branches.get_mut(&owner) {
                *all += 1;
            }
        }
        let only_share = branches
            .into_iter()
            .filter(|(_, (readers, all))| readers == all);
        only_share.map(|(owner, _)| owner).collect()
    }

    /// Checks that who is in front and may share a lock that is shared here has it, or is told of it later.
    #[cfg(test)]
    pub(super) fn lets_readers_in(&self) {
        for (lock, slot) in self.slots.iter().filter(|_| !self.closed) {
            let Phase::Shared(shared) = &slot.phase else {
                continue;
            };
            let comes = match shared.admission {
                Admission::Checking => true,
                Admission::Closed(until) => self.polls.contains(&(until, *lock)),
                Admission::Open(_) => false,
            };
            let reader = slot.queue.readers_in_front().next();
            assert!(comes || reader.is_none(), "{lock:?} keeps a reader out");
        }
    }

    /// Whether an owner that asks now shares the lock at once, or after the server was asked for other waiters.
    pub(super) fn is_let_in(&self, now: Now<'_>, lock: LockId, owner: OwnerId) -> bool {
        let Some(slot) = self.slots.get(&lock) else {
            return false;
        };
        let Phase::Shared(shared) = &slot.phase else {
            return false;
        };
        // What the owner itself has is not let in again.
        let is_own = self.owners.holds(owner).contains(&lock);
        let is_closed = matches!(shared.admission, Admission::Closed(until) if now() < until);
        !is_own && !is_closed && !slot.queue.wants_alone()
    }
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
            admission: Admission::Open(at + MAX_HELD),
            look_at: None,
        });
        self.sessions[session].held += 1;
        self.sessions[session].granted_at = at;
        self.admit(now, lock, effects);
    }

    /// Lets those in who are in front and want to share a lock that is shared.
    pub(super) fn admit(&mut self, now: Now<'_>, lock: LockId, effects: &mut Effects<W, H, R>) {
        if self.closed {
            return;
        }
        let now = now();
        self.expire_front(now, lock, effects);
        let Some(slot) = self.slots.get_mut(&lock) else {
            return;
        };
        let first = slot.wanted();
        let Phase::Shared(shared) = &mut slot.phase else {
            return;
        };
        let is_open = match shared.admission {
            Admission::Open(until) => now < until || shared.holds.is_empty(),
            Admission::Checking | Admission::Closed(_) => false,
        };
        if first == Some(LockMode::Shared) && !is_open {
            match shared.admission {
                Admission::Checking => return,
                Admission::Closed(until) if now < until => {
                    if self.polls.insert((until, lock)) {
                        self.arm(until, effects);
                    }
                }
                Admission::Open(_) | Admission::Closed(_) => {
                    shared.admission = Admission::Checking;
                    return self.command(0, Command::CheckWaiters { lock }, None, effects);
                }
            }
        }
        if is_open {
            self.let_in(now, lock, effects);
        }
        let Some(slot) = self.slots.get_mut(&lock) else {
            return;
        };
        slot.refuse_no_wait(effects);
        // Nobody else tells of it.
        if let (Some(ends), Phase::Shared(shared)) = (slot.queue.front_ends(), &mut slot.phase) {
            let at = ends.min(now + LOOK);
            if shared.look_at.is_none_or(|set| set <= now || at < set) {
                shared.look_at = Some(at);
                self.polls.insert((at, lock));
                self.arm(at, effects);
            }
        }
    }

    /// An attempt to have the lock alone that waits for nothing keeps nobody behind it out.
    fn let_in(&mut self, now: Time, lock: LockId, effects: &mut Effects<W, H, R>) {
        while let Some(Slot {
            phase: Phase::Shared(shared),
            queue,
            ..
        }) = self.slots.get_mut(&lock)
        {
            loop {
                let mut out = queue.take_attempts_in_front();
                out.extend(queue.take_expired_in_front(now));
                if out.is_empty() {
                    break;
                }
                for waiter in out {
                    self.owners.stop_waiting(&waiter, lock);
                    effects.answer_waiter(waiter, Answer::Busy);
                }
            }
            if queue.wanted() != Some(LockMode::Shared) {
                break;
            }
            let Some(next) = queue.pop() else {
                break;
            };
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
            self.owners.stop_waiting(&next, lock);
            self.owners.hold(next.owner, lock);
            effects.answer_waiter(next, Answer::Granted(granted));
        }
    }

    /// The answer of the server: whether others wait for a lock that is shared here.
    pub(super) fn waiters_checked(
        &mut self,
        now: Now<'_>,
        lock: LockId,
        has_waiters: bool,
        effects: &mut Effects<W, H, R>,
    ) {
        if let Some(slot) = self.slots.get_mut(&lock)
            && let Phase::Shared(shared) = &mut slot.phase
            && shared.admission == Admission::Checking
        {
            let until = now() + MAX_HELD;
            shared.admission = if has_waiters {
                Admission::Closed(until)
            } else {
                Admission::Open(until)
            };
            if has_waiters {
                self.refuse_cycles(now, lock, effects);
            }
            self.admit(now, lock, effects);
        }
    }

    /// Readers in front wait for the holders after all: those that would wait for themselves do not. Attempts that do not
    /// wait are refused as such.
    fn refuse_cycles(&mut self, now: Now<'_>, lock: LockId, effects: &mut Effects<W, H, R>) {
        let Some(slot) = self.slots.get(&lock) else {
            return;
        };
        let readers = slot.queue.readers_in_front();
        let readers = readers.filter(|waiter| waiter.policy != WaitPolicy::NoWait);
        let readers = readers.filter_map(|waiter| Some((waiter.id, waiter.owner?)));
        let readers: Vec<_> = readers.collect();
        let waits_for_itself = |table: &Self| {
            let awaited = table.awaited_with(lock);
            readers.iter().any(|(_, owner)| awaited.contains(owner))
        };
        if readers.is_empty() || !waits_for_itself(self) {
            return;
        }
        // Those whose time is over wait for nothing.
        self.expire_everywhere(now, effects);
        // That one of them is refused changes nothing of these.
        let awaited = self.awaited_with(lock);
        for (id, owner) in readers {
            if awaited.contains(&owner)
                && let Some(slot) = self.slots.get_mut(&lock)
                && let Some(waiter) = slot.queue.leave(id)
            {
                self.owners.stop_waiting(&waiter, lock);
                effects.answer_waiter(waiter, Answer::Failed(Reason::Deadlock));
            }
        }
    }

    /// Ends one of the holds of a lock that is shared, and releases it with the last.
    pub(super) fn end_share(
        &mut self,
        now: Now<'_>,
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
        self.owners.stop_holding(share.owner, lock);
        if shared.holds.is_empty() {
            let session = shared.session;
            self.release_at_server(now, session, lock, LockMode::Shared, reply, effects);
        } else {
            effects.released(reply, Ok(()));
        }
    }
}
