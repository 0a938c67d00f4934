//! A model of the lock table of the server.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::fence::HAND_OVER_BITS;
use crate::key::LockId;
use crate::mutex::{LockAnswer, LockMode};

/// The lock table of the server.
#[derive(Default)]
pub(in super::super) struct Server {
    pub(in super::super) holders: BTreeMap<LockId, Vec<(u64, LockMode)>>,
    pub(in super::super) queues: BTreeMap<LockId, VecDeque<(u64, LockMode)>>,
    pub(in super::super) granted: BTreeSet<u64>,
    /// What is held behind the wait of a session, as it noted it.
    pub(in super::super) notes: BTreeMap<u64, Vec<LockId>>,
    pub(in super::super) fences: i64,
    pub(in super::super) connections: u64,
}

impl Server {
    pub(in super::super) fn is_free(&self, lock: LockId, connection: u64, mode: LockMode) -> bool {
        let mut holders = self.holders.get(&lock).into_iter().flatten();
        holders.all(|(other, held)| {
            *other == connection || mode == LockMode::Shared && *held == LockMode::Shared
        })
    }

    pub(in super::super) fn try_lock(
        &mut self,
        lock: LockId,
        mode: LockMode,
        connection: u64,
    ) -> LockAnswer {
        let mut queue = self.queues.get(&lock).into_iter().flatten();
        let awaited =
            queue.any(|(_, other)| mode == LockMode::Exclusive || *other == LockMode::Exclusive);
        if awaited || !self.is_free(lock, connection, mode) {
            return LockAnswer::Contended;
        }
        self.grant(lock, mode, connection)
    }

    pub(in super::super) fn grant(
        &mut self,
        lock: LockId,
        mode: LockMode,
        connection: u64,
    ) -> LockAnswer {
        let holders = self.holders.entry(lock).or_default();
        assert!(
            !holders.iter().any(|(one, _)| *one == connection),
            "a session takes what it holds"
        );
        holders.push((connection, mode));
        self.token(mode)
    }

    pub(in super::super) fn token(&mut self, mode: LockMode) -> LockAnswer {
        if mode == LockMode::Shared {
            return LockAnswer::Shared;
        }
        self.fences += 1;
        LockAnswer::Taken(self.fences << HAND_OVER_BITS)
    }

    /// A release of what is held in that mode; other holds it leaves.
    pub(in super::super) fn release(
        &mut self,
        lock: LockId,
        mode: LockMode,
        connection: u64,
    ) -> LockAnswer {
        let mut holders = self.holders.get(&lock).into_iter().flatten();
        if holders.any(|held| *held == (connection, mode)) {
            return self.unlock(lock, connection);
        }
        LockAnswer::NotHeld
    }

    pub(in super::super) fn unlock(&mut self, lock: LockId, connection: u64) -> LockAnswer {
        let holders = self.holders.entry(lock).or_default();
        let held = holders.len();
        holders.retain(|(one, _)| *one != connection);
        let released = holders.len() < held;
        if holders.is_empty() {
            self.holders.remove(&lock);
        }
        self.pass_on(lock);
        if released {
            LockAnswer::Released
        } else {
            LockAnswer::NotHeld
        }
    }

    pub(in super::super) fn pass_on(&mut self, lock: LockId) {
        while let Some((first, mode)) = self.queues.get(&lock).and_then(|q| q.front().copied()) {
            if !self.is_free(lock, first, mode) {
                return;
            }
            if let Some(queue) = self.queues.get_mut(&lock) {
                queue.pop_front();
            }
            self.holders.entry(lock).or_default().push((first, mode));
            self.granted.insert(first);
        }
    }

    /// Notes what is held behind the wait that the session is about to begin. Returns those of these locks for which the
    /// holder of the lock waits, as far as notes tell.
    pub(in super::super) fn note(
        &mut self,
        lock: LockId,
        connection: u64,
        holding: &[LockId],
    ) -> Vec<LockId> {
        self.notes.insert(connection, holding.to_vec());
        let mut reached = BTreeSet::from([lock]);
        let mut next = vec![lock];
        while let Some(held) = next.pop() {
            for (wanted, queue) in &self.queues {
                let mut notes = queue.iter().filter_map(|(one, _)| self.notes.get(one));
                if notes.any(|notes| notes.contains(&held)) && reached.insert(*wanted) {
                    next.push(*wanted);
                }
            }
        }
        let closed = holding.iter().filter(|lock| reached.contains(lock));
        closed.copied().collect()
    }

    pub(in super::super) fn stop_waiting(&mut self, connection: u64) {
        let locks: Vec<_> = self.queues.keys().copied().collect();
        for lock in locks {
            if let Some(queue) = self.queues.get_mut(&lock) {
                queue.retain(|(one, _)| *one != connection);
            }
            self.pass_on(lock);
        }
    }

    /// A wait ends without the lock, also where it was granted meanwhile.
    pub(in super::super) fn give_up(&mut self, lock: LockId, connection: u64) {
        self.stop_waiting(connection);
        if self.granted.remove(&connection) {
            self.unlock(lock, connection);
        }
    }

    pub(in super::super) fn end(&mut self, connection: u64) {
        self.stop_waiting(connection);
        self.granted.remove(&connection);
        self.notes.remove(&connection);
        let locks: Vec<_> = self.holders.keys().copied().collect();
        for lock in locks {
            self.unlock(lock, connection);
        }
    }
}
