//! Which line of work holds and waits for which locks.

use rustc_hash::FxHashMap;

use super::state::{Phase, State};
use super::{News, Sessions};
use crate::error::{Error, ErrorKind};
use crate::key::LockId;
use crate::mutex::line;

/// The lines that hold locks or wait for some.
#[derive(Default)]
pub(super) struct Lines(FxHashMap<line::Id, Line>);

#[derive(Default)]
struct Line {
    holds: Vec<LockId>,
    waits: Vec<LockId>,
}

impl Lines {
    pub(super) fn waits(&mut self, line: Option<line::Id>, lock: LockId) {
        if let Some(line) = line {
            self.0.entry(line).or_default().waits.push(lock);
        }
    }

    /// The line waits no longer.
    pub(super) fn ended(&mut self, line: Option<line::Id>, lock: LockId) {
        self.remove(line, lock, |line| &mut line.waits);
    }

    pub(super) fn holds(&mut self, line: Option<line::Id>, lock: LockId) {
        if let Some(line) = line {
            self.0.entry(line).or_default().holds.push(lock);
        }
    }

    /// The line holds no longer.
    pub(super) fn dropped(&mut self, line: Option<line::Id>, lock: LockId) {
        self.remove(line, lock, |line| &mut line.holds);
    }

    fn remove(
        &mut self,
        line: Option<line::Id>,
        lock: LockId,
        list: impl FnOnce(&mut Line) -> &mut Vec<LockId>,
    ) {
        let Some(line) = line else {
            return;
        };
        if let Some(known) = self.0.get_mut(&line) {
            let list = list(known);
            if let Some(at) = list.iter().position(|one| *one == lock) {
                list.swap_remove(at);
            }
            if known.holds.is_empty() && known.waits.is_empty() {
                self.0.remove(&line);
            }
        }
    }
}

impl State {
    /// Whether a line that waited for the lock would wait for itself.
    pub(super) fn is_circle(&self, line: line::Id, lock: LockId) -> bool {
        let mut reached = vec![lock];
        let mut next = 0;
        while let Some(lock) = reached.get(next).copied() {
            next += 1;
            for holder in self.holders(lock) {
                if holder == line {
                    return true;
                }
                for wanted in self
                    .lines
                    .0
                    .get(&holder)
                    .map_or(&[][..], |line| &line.waits)
                {
                    if !reached.contains(wanted) {
                        reached.push(*wanted);
                    }
                }
            }
        }
        false
    }

    /// What is held by a line and by those that wait, in this process, for it.
    pub(super) fn held_behind(&self, line: line::Id) -> Vec<LockId> {
        let mut lines = vec![line];
        let mut held = Vec::new();
        let mut next = 0;
        while let Some(line) = lines.get(next).copied() {
            next += 1;
            for lock in self.lines.0.get(&line).map_or(&[][..], |line| &line.holds) {
                if held.contains(lock) {
                    continue;
                }
                held.push(*lock);
                let queue = self.slots.get(lock).map(|slot| &slot.queue);
                for waiter in queue.into_iter().flatten() {
                    lines.extend(waiter.line.filter(|line| !lines.contains(line)));
                }
            }
        }
        held
    }

    fn holders(&self, lock: LockId) -> Vec<line::Id> {
        match self.slots.get(&lock).map(|slot| &slot.phase) {
            Some(Phase::Held(held)) => held.line.into_iter().collect(),
            Some(Phase::Shared(shared)) => shared.holds.iter().filter_map(|one| one.1).collect(),
            _ => Vec::new(),
        }
    }
}

impl Sessions {
    /// A session was about to wait for the lock, and learned that somebody who holds it waits for
    /// one of those `held` by lines that wait for it here. They are told.
    pub(crate) fn close_circle(&self, lock: LockId, held: &[LockId]) {
        let mut news = News::default();
        let mut state = self.lock();
        let lines = state.slots.get(&lock).into_iter();
        let lines: Vec<line::Id> = lines
            .flat_map(|slot| slot.queue.iter().filter_map(|waiter| waiter.line))
            .filter(|line| {
                state
                    .held_behind(*line)
                    .iter()
                    .any(|own| held.contains(own))
            })
            .collect();
        if let Some(slot) = state.slots.get_mut(&lock) {
            for waiter in std::mem::take(&mut slot.queue) {
                if waiter.line.is_some_and(|line| lines.contains(&line)) {
                    news.grants.push((waiter.reply, Err(deadlock())));
                } else {
                    slot.queue.push_back(waiter);
                }
            }
        }
        drop(state);
        news.tell();
    }
}

pub(super) fn deadlock() -> Error {
    let message = "waiting would never end: whoever holds the lock waits for what this line of work holds, or is this line itself; release what it holds and begin again";
    Error::new(ErrorKind::Deadlock, "lock", message)
}
