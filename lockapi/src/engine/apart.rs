//! Requests that a lane tries apart from the others, because the statement that carried them waited
//! for a lock of somebody's open transaction, or had data that the server refuses.

use std::collections::VecDeque;
use std::time::Duration;

use super::clock::Time;
use super::piles::Pile;
use crate::error::{ErrorKind, Failure};

/// How long a statement of a lane waits for a lock: for so long everything on the lane waits with it.
const PATIENCE: Duration = Duration::from_millis(300);
/// The same while something is known to wait, since more of it may come.
const WARNED: Duration = Duration::from_millis(50);
/// How long the first statement of those waits that are tried apart; each further one twice as long.
const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(80);
/// After a statement that waited in vain the lane is for others for so many times as long.
const REST: u32 = 4;
/// Those that failed together are divided into so many parts, until each fails by itself.
const PARTS: usize = 16;

/// The requests of a lane that are tried apart.
pub(super) struct Apart<N> {
    /// Those first of which it is not known whether they wait.
    groups: VecDeque<Group<N>>,
    /// When the next of them is tried.
    next: Time,
    /// How long a request may wait for a lock.
    limit: Duration,
}

/// Requests that are tried together.
pub(super) struct Group<N> {
    pile: Box<dyn Pile<N>>,
    /// Whether it is known which of them wait: who wants the same waits with them.
    known: bool,
    patience: Duration,
    until: Time,
}

impl<N> Group<N> {
    /// What is to be tried, and how long it may wait for a lock.
    pub(super) fn turn(&mut self) -> (&mut dyn Pile<N>, Duration) {
        (self.pile.as_mut(), self.patience)
    }
}

impl<N: 'static> Apart<N> {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            groups: VecDeque::new(),
            next: Time::ZERO,
            limit,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// How long other statements may wait for a lock.
    pub(super) fn patience(&self) -> Duration {
        if self.is_empty() { PATIENCE } else { WARNED }
    }

    /// The time until something is to be tried.
    pub(super) fn wait(&self, now: Time) -> Option<Duration> {
        (!self.is_empty()).then(|| self.next.saturating_sub(now))
    }

    /// What is to be tried now. Refuses what has waited for too long.
    pub(super) fn due(&mut self, now: Time) -> Option<Group<N>> {
        if now < self.next {
            return None;
        }
        let message = "a transaction that is open has locked it; nothing was done";
        let failure = Failure::statement(Some("55P03".to_owned()), false, message);
        self.groups.retain_mut(|group| {
            let late = group.until <= now;
            if late {
                group.pile.refuse_all(&failure);
            }
            !late
        });
        self.groups.pop_front()
    }

    /// Lets those of a pile wait apart that want what others are known to wait for.
    pub(super) fn join(&mut self, fresh: &mut dyn Pile<N>) {
        for group in self.groups.iter_mut().filter(|group| group.known) {
            group.pile.join(fresh);
        }
    }

    /// Takes the requests of a statement that failed: those that others may be to blame for are
    /// tried again.
    pub(super) fn failed(&mut self, pile: &mut dyn Pile<N>, failure: &Failure, now: Time) {
        self.divide(pile, failure, now + self.limit);
    }

    /// Takes a group back that was tried.
    pub(super) fn tried(&mut self, mut group: Group<N>, failure: Option<&Failure>, now: Time) {
        if let Some(failure) = failure {
            let waited = waited(failure);
            if waited {
                self.next = now + group.patience * REST;
            }
            if waited && group.known {
                group.patience = LONGEST.min(group.patience * 2);
            } else {
                self.divide(group.pile.as_mut(), failure, group.until);
            }
        }
        if !group.pile.is_empty() {
            self.groups.push_back(group);
        }
    }

    fn divide(&mut self, pile: &mut dyn Pile<N>, failure: &Failure, until: Time) {
        let waited = waited(failure);
        let of_one = waited || !failure.broken && failure.kind() == ErrorKind::Corrupt;
        if !of_one {
            pile.refuse(failure);
            return;
        }
        let parts = pile.split(PARTS);
        let known = parts.len() == 1;
        for mut pile in parts {
            if known && !waited {
                pile.refuse_all(failure);
                continue;
            }
            let group = Group {
                pile,
                known,
                patience: FIRST,
                until,
            };
            if known {
                self.groups.push_back(group);
            } else {
                self.groups.push_front(group);
            }
        }
    }
}

/// Whether it is the lock of another transaction that was in the way.
fn waited(failure: &Failure) -> bool {
    !failure.broken && failure.kind() == ErrorKind::TimedOut
}
