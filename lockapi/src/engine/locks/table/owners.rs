//! Which owner holds and waits for which locks: the wait-for graph of the process.

use rustc_hash::{FxHashMap, FxHashSet};

use super::LockTable;
use super::slot::{Phase, WaitPolicy, Waiter};
use crate::engine::clock::Time;
use crate::key::LockId;
use crate::mutex::OwnerId;

/// The owners that hold locks or wait for some.
#[derive(Default)]
pub(super) struct Owners {
    owners: FxHashMap<OwnerId, Owner>,
    /// Locks whose owners gave them up, or stopped to wait while they held them: who waits at the server may wait for
    /// them no more.
    given_up: Vec<LockId>,
}

#[derive(Default)]
struct Owner {
    holds: Vec<LockId>,
    /// A lock is in it as often as the owner waits for it.
    waits: Vec<LockId>,
}

impl Owners {
    /// A waiter joins the queue of a lock. One that does not wait closes no cycle.
    pub(super) fn wait<W>(&mut self, waiter: &Waiter<W>, lock: LockId) {
        if let Some(owner) = waiter.owner
            && waiter.policy != WaitPolicy::NoWait
        {
            self.owners.entry(owner).or_default().waits.push(lock);
        }
    }

    /// A waiter is out of the queue of a lock.
    pub(super) fn stop_waiting<W>(&mut self, waiter: &Waiter<W>, lock: LockId) {
        if waiter.policy != WaitPolicy::NoWait {
            self.remove(waiter.owner, lock, |owner| &mut owner.waits);
            let owner = waiter.owner.and_then(|owner| self.owners.get(&owner));
            // Another branch of it may still wait.
            if let Some(owner) = owner.filter(|owner| !owner.waits.contains(&lock)) {
                self.given_up.extend(&owner.holds);
            }
        }
    }

    pub(super) fn hold(&mut self, owner: Option<OwnerId>, lock: LockId) {
        if let Some(owner) = owner {
            self.owners.entry(owner).or_default().holds.push(lock);
        }
    }

    pub(super) fn stop_holding(&mut self, owner: Option<OwnerId>, lock: LockId) {
        self.given_up.extend(owner.map(|_| lock));
        self.remove(owner, lock, |owner| &mut owner.holds);
    }

    /// The locks that were given up since the last call.
    pub(super) fn take_given_up(&mut self) -> Vec<LockId> {
        std::mem::take(&mut self.given_up)
    }

    fn remove(
        &mut self,
        owner: Option<OwnerId>,
        lock: LockId,
        list: impl FnOnce(&mut Owner) -> &mut Vec<LockId>,
    ) {
        let Some(id) = owner else {
            return;
        };
        if let Some(owner) = self.owners.get_mut(&id) {
            let list = list(owner);
            if let Some(at) = list.iter().position(|one| *one == lock) {
                list.swap_remove(at);
            }
            if owner.holds.is_empty() && owner.waits.is_empty() {
                self.owners.remove(&id);
            }
        }
    }

    fn waits(&self, owner: OwnerId) -> &[LockId] {
        self.owners.get(&owner).map_or(&[], |owner| &owner.waits)
    }

    pub(super) fn holds(&self, owner: OwnerId) -> &[LockId] {
        self.owners.get(&owner).map_or(&[], |owner| &owner.holds)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// What all owners hold, and what they wait for.
    #[cfg(test)]
    pub(super) fn all(&self) -> [Vec<(OwnerId, LockId)>; 2] {
        let all = |of: fn(&Owner) -> &Vec<LockId>| {
            let owners = self.owners.iter();
            let locks = owners.flat_map(|(id, owner)| of(owner).iter().map(|lock| (*id, *lock)));
            locks.collect()
        };
        [all(|owner| &owner.holds), all(|owner| &owner.waits)]
    }
}

impl<W, H, R> LockTable<W, H, R> {
    /// Whether an owner that waited for the lock would wait for itself.
    pub(super) fn closes_cycle(&self, owner: OwnerId, lock: LockId) -> bool {
        // Who holds nothing that another owner waits for closes none.
        let is_waited_for = |held: &LockId| {
            let mut slot = self.slots.get(held).into_iter();
            *held == lock || slot.any(|slot| slot.queue.owners().next().is_some())
        };
        let mut held = self.owners.holds(owner).iter();
        held.any(is_waited_for) && self.awaited_with(lock).contains(&owner)
    }

    /// The owners that go on before a lock is free: its holders, those that these wait for, and so on.
    pub(super) fn awaited_with(&self, lock: LockId) -> FxHashSet<OwnerId> {
        let mut reached: FxHashSet<_> = [lock].into_iter().collect();
        let mut next = vec![lock];
        let mut admitted = FxHashMap::default();
        let mut owners = FxHashSet::default();
        while let Some(lock) = next.pop() {
            for holder in self.holders(lock) {
                if !owners.insert(holder) {
                    continue;
                }
                for wanted in self.owners.waits(holder) {
                    let readers = admitted.entry(*wanted);
                    let readers = readers.or_insert_with(|| self.may_be_admitted(*wanted));
                    if !readers.contains(&holder) && reached.insert(*wanted) {
                        next.push(*wanted);
                    }
                }
            }
        }
        owners
    }

    /// What is held by owners and by those that wait, in this process, for them. Who is out of time waits for nobody.
    pub(super) fn held_behind(
        &self,
        now: Time,
        owners: impl IntoIterator<Item = OwnerId>,
    ) -> Vec<LockId> {
        let mut next: Vec<_> = owners.into_iter().collect();
        let mut reached: FxHashSet<_> = next.iter().copied().collect();
        let mut held = FxHashSet::default();
        while let Some(owner) = next.pop() {
            for lock in self.owners.holds(owner) {
                if !held.insert(*lock) {
                    continue;
                }
                let waiting = self.slots.get(lock).into_iter();
                let owners = waiting.flat_map(|slot| slot.queue.owners_in_time(now));
                next.extend(owners.filter(|owner| reached.insert(*owner)));
            }
        }
        let mut held: Vec<_> = held.into_iter().collect();
        held.sort_unstable();
        held
    }

    fn holders(&self, lock: LockId) -> Vec<OwnerId> {
        match self.slots.get(&lock).map(|slot| &slot.phase) {
            Some(Phase::Held(held)) => held.owner.into_iter().collect(),
            Some(Phase::Shared(shared)) => {
                shared.holds.iter().filter_map(|one| one.owner).collect()
            }
            _ => Vec::new(),
        }
    }
}
