//! The lock table of the server: who holds which advisory lock, and who waits for it.

use std::collections::VecDeque;

use super::ModelState;
use crate::key::LockId;
use crate::mutex::LockMode;

#[derive(Clone, Debug)]
pub(super) struct Holder {
    pub(super) session: u64,
    pub(super) alone: u32,
    pub(super) shared: u32,
}

impl Holder {
    fn times(&self, mode: LockMode) -> u32 {
        match mode {
            LockMode::Exclusive => self.alone,
            LockMode::Shared => self.shared,
        }
    }

    fn times_mut(&mut self, mode: LockMode) -> &mut u32 {
        match mode {
            LockMode::Exclusive => &mut self.alone,
            LockMode::Shared => &mut self.shared,
        }
    }
}

impl ModelState {
    /// Advisory locks are counted: a session can take its own lock again. Who does not have the lock
    /// that way yet stands back for those who wait for it.
    pub(crate) fn try_lock(&mut self, lock: LockId, mode: LockMode, session: u64) -> bool {
        let again = self
            .own(lock, session)
            .is_some_and(|own| own.times(mode) > 0);
        if !again && (self.is_wanted(lock, mode) || self.is_refused(lock, mode, session)) {
            return false;
        }
        self.grant(lock, mode, session);
        true
    }

    /// Takes the lock, or waits for it behind those who came first: ask again until there is an
    /// answer, which is `false` when the time has run out.
    pub(crate) fn wait_lock(&mut self, lock: LockId, mode: LockMode, session: u64) -> Option<bool> {
        if self.given.remove(&(lock, session)) {
            self.interrupted.remove(&session);
            return Some(true);
        }
        let waits = self.queues.get(&lock).is_some_and(|queue| {
            let mut waiting = queue.iter();
            waiting.any(|(waiting, _)| *waiting == session)
        });
        if !waits && self.try_lock(lock, mode, session) {
            return Some(true);
        }
        let interrupted = waits && self.interrupted.remove(&session);
        if self.late || interrupted {
            self.stop_waiting(session);
            return Some(false);
        }
        if !waits {
            let queue = self.queues.entry(lock).or_default();
            queue.push_back((session, mode));
        }
        None
    }

    /// Tells a session to give up its wait, if it waits.
    pub(crate) fn interrupt(&mut self, session: u64) {
        let mut waiting = self.queues.values().flatten();
        if waiting.any(|(waiting, _)| *waiting == session) {
            self.interrupted.insert(session);
        }
    }

    /// The session gives up waiting; those behind it may no longer have to.
    pub(super) fn stop_waiting(&mut self, session: u64) {
        self.interrupted.remove(&session);
        let mut left = Vec::new();
        self.queues.retain(|lock, queue| {
            let waited = queue.len();
            queue.retain(|(waiting, _)| *waiting != session);
            if queue.len() < waited {
                left.push(*lock);
            }
            !queue.is_empty()
        });
        for lock in left {
            self.pass_on(lock);
        }
    }

    pub(crate) fn unlock(&mut self, lock: LockId, mode: LockMode, session: u64) -> bool {
        let Some(holders) = self.locks.get_mut(&lock) else {
            return false;
        };
        let own = holders.iter_mut().find(|own| own.session == session);
        let Some(times) = own
            .map(|own| own.times_mut(mode))
            .filter(|times| **times > 0)
        else {
            return false;
        };
        *times -= 1;
        if *times == 0 {
            holders.retain(|own| own.alone + own.shared > 0);
            if holders.is_empty() {
                self.locks.remove(&lock);
            }
            self.pass_on(lock);
        }
        true
    }

    /// A lock goes to those who wait for it and can have it, in their order: nobody can come in
    /// between.
    fn pass_on(&mut self, lock: LockId) {
        while let Some((session, mode)) = self.first_in_queue(lock) {
            if self.is_refused(lock, mode, session) {
                return;
            }
            if let Some(queue) = self.queues.get_mut(&lock) {
                queue.pop_front();
            }
            self.grant(lock, mode, session);
            self.given.insert((lock, session));
        }
        self.queues.remove(&lock);
    }

    fn first_in_queue(&self, lock: LockId) -> Option<(u64, LockMode)> {
        self.queues.get(&lock)?.front().copied()
    }

    fn grant(&mut self, lock: LockId, mode: LockMode, session: u64) {
        let holders = self.locks.entry(lock).or_default();
        let at = holders.iter().position(|own| own.session == session);
        let at = at.unwrap_or_else(|| {
            holders.push(Holder {
                session,
                alone: 0,
                shared: 0,
            });
            holders.len() - 1
        });
        *holders[at].times_mut(mode) += 1;
    }

    fn own(&self, lock: LockId, session: u64) -> Option<&Holder> {
        let mut holders = self.locks.get(&lock)?.iter();
        holders.find(|own| own.session == session)
    }

    /// Whether another session holds the lock in a way that does not go together with this one.
    fn is_refused(&self, lock: LockId, mode: LockMode, session: u64) -> bool {
        let mut holders = self.locks.get(&lock).into_iter().flatten();
        holders.any(|other| {
            other.session != session && (mode == LockMode::Exclusive || other.alone > 0)
        })
    }

    /// Whether somebody waits for the lock in a way that does not go together with this one.
    fn is_wanted(&self, lock: LockId, mode: LockMode) -> bool {
        let mut waiting = self.queues.get(&lock).into_iter().flatten();
        waiting.any(|(_, wanted)| mode == LockMode::Exclusive || *wanted == LockMode::Exclusive)
    }

    /// The locks that sessions which hold this one wait for.
    pub(crate) fn wanted_by_holders_of(&self, lock: LockId) -> Vec<LockId> {
        let waits = |queue: &VecDeque<(u64, LockMode)>| {
            let mut waiting = queue.iter();
            waiting.any(|(session, _)| self.own(lock, *session).is_some())
        };
        let wanted = self.queues.iter().filter(|(_, queue)| waits(queue));
        wanted.map(|(wanted, _)| *wanted).collect()
    }

    /// Whether any session holds the lock.
    #[must_use]
    pub fn is_locked(&self, lock: LockId) -> bool {
        self.locks.contains_key(&lock)
    }

    /// How many sessions hold the lock.
    #[must_use]
    pub fn holders(&self, lock: LockId) -> usize {
        self.locks.get(&lock).map_or(0, Vec::len)
    }

    /// Whether the session holds the lock.
    pub(crate) fn holds(&self, lock: LockId, session: u64) -> bool {
        let holders = self.locks.get(&lock);
        holders.is_some_and(|holders| holders.iter().any(|one| one.session == session))
    }

    /// Whether the session holds any lock.
    pub(crate) fn holds_any(&self, session: u64) -> bool {
        let mut holders = self.locks.values().flatten();
        holders.any(|one| one.session == session)
    }

    /// Locks that are held, with their sessions and whether they share them.
    pub(crate) fn held(&self) -> impl Iterator<Item = (LockId, u64, bool)> {
        self.locks.iter().flat_map(|(lock, holders)| {
            let of = |one: &Holder| (*lock, one.session, one.alone == 0);
            holders.iter().map(of)
        })
    }

    /// How many sessions wait for the lock.
    #[must_use]
    pub fn waiting(&self, lock: LockId) -> usize {
        self.queues.get(&lock).map_or(0, VecDeque::len)
    }

    /// The advisory locks that a session holds.
    #[must_use]
    pub fn locks_of(&self, session: u64) -> Vec<LockId> {
        let held = self.locks.keys().filter(|lock| self.holds(**lock, session));
        let mut held: Vec<_> = held.copied().collect();
        held.sort_unstable_by_key(|lock| lock.key);
        held
    }

    /// How many advisory locks are held.
    #[must_use]
    pub fn locks(&self) -> usize {
        self.locks.len()
    }

    pub(crate) fn release_all(&mut self, session: u64) {
        self.given.retain(|(_, to)| *to != session);
        let mut released = Vec::new();
        self.locks.retain(|lock, holders| {
            let held = holders.len();
            holders.retain(|own| own.session != session);
            if holders.len() < held {
                released.push(*lock);
            }
            !holders.is_empty()
        });
        for lock in released {
            self.pass_on(lock);
        }
    }
}
