//! Which line of work holds and waits for which locks: the wait-for graph of the process.

use rustc_hash::{FxHashMap, FxHashSet};

use super::LockTable;
use super::slot::{Patience, Phase, Waiter};
use crate::key::LockId;
use crate::mutex::line;

/// The lines that hold locks or wait for some.
#[derive(Default)]
pub(super) struct Owners(FxHashMap<line::Id, Owner>);

#[derive(Default)]
struct Owner {
    holds: Vec<LockId>,
    /// A lock is in it as often as the line waits for it.
    waits: Vec<LockId>,
}

impl Owners {
    /// A waiter joins the queue of a lock. One that does not wait closes no circle.
    pub(super) fn wait<W>(&mut self, waiter: &Waiter<W>, lock: LockId) {
        if let Some(line) = waiter.line
            && waiter.patience != Patience::None
        {
            self.0.entry(line).or_default().waits.push(lock);
        }
    }

    /// A waiter is out of the queue of a lock.
    pub(super) fn unwait<W>(&mut self, waiter: &Waiter<W>, lock: LockId) {
        if waiter.patience != Patience::None {
            self.remove(waiter.line, lock, |owner| &mut owner.waits);
        }
    }

    pub(super) fn hold(&mut self, line: Option<line::Id>, lock: LockId) {
        if let Some(line) = line {
            self.0.entry(line).or_default().holds.push(lock);
        }
    }

    pub(super) fn unhold(&mut self, line: Option<line::Id>, lock: LockId) {
        self.remove(line, lock, |owner| &mut owner.holds);
    }

    fn remove(
        &mut self,
        line: Option<line::Id>,
        lock: LockId,
        list: impl FnOnce(&mut Owner) -> &mut Vec<LockId>,
    ) {
        let Some(line) = line else {
            return;
        };
        if let Some(owner) = self.0.get_mut(&line) {
            let list = list(owner);
            if let Some(at) = list.iter().position(|one| *one == lock) {
                list.swap_remove(at);
            }
            if owner.holds.is_empty() && owner.waits.is_empty() {
                self.0.remove(&line);
            }
        }
    }

    fn waits(&self, line: line::Id) -> &[LockId] {
        self.0.get(&line).map_or(&[], |owner| &owner.waits)
    }

    fn holds(&self, line: line::Id) -> &[LockId] {
        self.0.get(&line).map_or(&[], |owner| &owner.holds)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<W, H, R> LockTable<W, H, R> {
    /// Whether a line that waited for the lock would wait for itself.
    pub(super) fn closes_circle(&self, line: line::Id, lock: LockId) -> bool {
        let mut reached: FxHashSet<_> = [lock].into_iter().collect();
        let mut next = vec![lock];
        while let Some(lock) = next.pop() {
            for holder in self.holders(lock) {
                if holder == line {
                    return true;
                }
                let wanted = self.owners.waits(holder).iter().copied();
                next.extend(wanted.filter(|wanted| reached.insert(*wanted)));
            }
        }
        false
    }

    /// What is held by lines and by those that wait, in this process, for them.
    pub(super) fn held_behind(&self, lines: impl IntoIterator<Item = line::Id>) -> Vec<LockId> {
        let mut next: Vec<_> = lines.into_iter().collect();
        let mut reached: FxHashSet<_> = next.iter().copied().collect();
        let mut held = FxHashSet::default();
        while let Some(line) = next.pop() {
            for lock in self.owners.holds(line) {
                if !held.insert(*lock) {
                    continue;
                }
                let waiting = self.slots.get(lock).into_iter();
                let lines = waiting.flat_map(|slot| slot.queue.iter().filter_map(|one| one.line));
                next.extend(lines.filter(|line| reached.insert(*line)));
            }
        }
        let mut held: Vec<_> = held.into_iter().collect();
        held.sort_unstable();
        held
    }

    fn holders(&self, lock: LockId) -> Vec<line::Id> {
        match self.slots.get(&lock).map(|slot| &slot.phase) {
            Some(Phase::Held(held)) => held.line.into_iter().collect(),
            Some(Phase::Shared(shared)) => shared.holds.iter().filter_map(|one| one.line).collect(),
            _ => Vec::new(),
        }
    }
}
