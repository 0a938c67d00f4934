//! What holds between any two changes of the table: its counts and lists say what its slots and sessions say.

use std::collections::BTreeMap;

use super::LockTable;
use super::session::{Command, Request};
use super::slot::Phase;
use crate::key::LockId;
use crate::mutex::OwnerId;

/// How often each one is there.
type Counts<T> = BTreeMap<T, usize>;

fn counts<T: Ord>(all: impl Iterator<Item = T>) -> Counts<T> {
    let mut counts = Counts::new();
    for one in all {
        *counts.entry(one).or_default() += 1;
    }
    counts
}

impl<W, H: Clone + Default, R> LockTable<W, H, R> {
    /// Checks all of it.
    pub(super) fn is_consistent(&self) {
        self.slots_are_served();
        self.sessions_are_counted();
        self.owners_are_known();
        self.deadlines_have_a_timer();
    }

    /// Whether a session is to carry out such a command, or is doing so.
    fn is_asked(&self, is: impl Fn(&Command) -> bool) -> bool {
        self.commands().any(|(_, command)| is(command))
    }

    /// All commands that are queued or under way, with their sessions.
    fn commands(&self) -> impl Iterator<Item = (usize, &Command)> {
        let sessions = self.sessions.iter().enumerate();
        sessions.flat_map(|(at, session)| {
            let sent = session.in_flight.iter().flatten();
            let all = session.requests.iter().chain(sent);
            all.map(move |Request { command, .. }| (at, command))
        })
    }

    /// Something goes on for each lock, and for nobody who is not there.
    fn slots_are_served(&self) {
        let of = |is: &dyn Fn(&Phase<H>) -> bool| {
            let slots = self.slots.iter().filter(|(_, slot)| is(&slot.phase));
            slots.map(|(lock, _)| *lock).collect::<Vec<_>>()
        };
        for (lock, slot) in &self.slots {
            slot.queue.is_counted();
            let lasts = match &slot.phase {
                Phase::Held(_) => true,
                Phase::Shared(shared) => !shared.holds.is_empty(),
                Phase::Trying => {
                    self.is_asked(|one| matches!(one, Command::Try { lock: it, .. } if it == lock))
                }
                Phase::Releasing => self
                    .is_asked(|one| matches!(one, Command::Release { lock: it, .. } if it == lock)),
                Phase::Wanted(turn) => {
                    !slot.has_no_waiters() && self.wanted.get(turn) == Some(lock)
                }
                Phase::Waiting(session) => {
                    let wait = self.sessions[*session].wait.as_ref();
                    wait.is_some_and(|wait| wait.lock == *lock)
                }
                Phase::Polling(at) => !slot.has_no_waiters() && self.polls.contains(&(*at, *lock)),
            };
            assert!(lasts, "nothing goes on for {lock:?}");
        }
        let wanted = of(&|phase| matches!(phase, Phase::Wanted(_)));
        assert_eq!(self.wanted.len(), wanted.len(), "locks that are wanted");
        let waiting = of(&|phase| matches!(phase, Phase::Waiting(_)));
        let waits = self.sessions.iter().filter(|one| one.wait.is_some());
        assert_eq!(waits.count(), waiting.len(), "sessions that wait");
    }

    fn sessions_are_counted(&self) {
        let release = |command: &Command| matches!(command, Command::Release { .. });
        let releases = self.commands().filter(|(_, command)| release(command));
        assert_eq!(self.releases, releases.count(), "releases");
        let held = counts(self.slots.values().filter_map(super::slot::Slot::session));
        for (at, session) in self.sessions.iter().enumerate() {
            let held = held.get(&at).copied().unwrap_or_default();
            assert_eq!(session.held, held, "locks that a session holds");
            let has_work = !session.requests.is_empty() || session.wait.is_some();
            assert!(session.running || !has_work, "session {at} has a worker");
            let interrupt =
                |one: &Command| matches!(one, Command::Interrupt { session, .. } if *session == at);
            assert_eq!(
                session.interrupting,
                self.is_asked(interrupt),
                "an interrupt"
            );
        }
    }

    fn owners_are_known(&self) {
        let mut holds: Vec<(OwnerId, LockId)> = Vec::new();
        let mut waits = Vec::new();
        for (lock, slot) in &self.slots {
            let owners: Vec<_> = match &slot.phase {
                Phase::Held(held) => vec![held.owner],
                Phase::Shared(shared) => shared.holds.iter().map(|one| one.owner).collect(),
                _ => Vec::new(),
            };
            holds.extend(owners.into_iter().flatten().map(|owner| (owner, *lock)));
            waits.extend(slot.queue.owners().map(|owner| (owner, *lock)));
        }
        let [told_holds, told_waits] = self.owners.all();
        assert_eq!(
            counts(told_holds.into_iter()),
            counts(holds.into_iter()),
            "what owners hold"
        );
        assert_eq!(
            counts(told_waits.into_iter()),
            counts(waits.into_iter()),
            "what owners wait for"
        );
    }

    /// What is due at a time has a timer that is not later.
    fn deadlines_have_a_timer(&self) {
        let sessions = self.sessions.iter();
        let deadlines = sessions
            .flat_map(|one| [one.ping_at, one.interrupt_at])
            .flatten();
        let polls = self.polls.first().map(|(at, _)| *at);
        if let Some(first) = deadlines.chain(polls).chain(self.observe_at).min() {
            let is_set = self
                .armed
                .is_some_and(|at| at <= first && self.timers.contains(&at));
            assert!(is_set, "{first:?} is not before the timer {:?}", self.armed);
        }
    }
}
