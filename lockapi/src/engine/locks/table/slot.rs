//! One lock that is held or wanted.

use std::collections::VecDeque;

use super::effects::{Answer, Effects};
use super::shared::Shared;
use crate::engine::clock::Time;
use crate::key::LockId;
use crate::mutex::{Way, line};

/// How long a caller is willing to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    None,
    Until(Time),
    Forever,
}

/// What a caller asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    pub(crate) lock: LockId,
    pub(crate) way: Way,
    /// The line of work that asks, if it told.
    pub(crate) line: Option<line::Id>,
    pub(crate) patience: Patience,
}

/// A caller in the queue of a lock.
pub(super) struct Waiter<W> {
    pub(super) id: u64,
    pub(super) patience: Patience,
    pub(super) way: Way,
    pub(super) line: Option<line::Id>,
    /// Since when it waits for another; unknown of one whose attempt is under way.
    pub(super) since: Option<Time>,
    /// `None` of one that left.
    pub(super) reply: Option<W>,
}

impl<W> Waiter<W> {
    /// How long it has waited for another.
    pub(super) fn waited(&self, now: Time) -> Option<Time> {
        self.since.map(|since| now.saturating_sub(since))
    }
}

/// What is known of a lock.
pub(super) enum Phase<H> {
    /// An attempt is queued or under way on session 0.
    Trying,
    Held(Held<H>),
    Shared(Shared<H>),
    /// A release is queued or under way.
    Releasing,
    /// Another process has it, and no session is free to wait for it: this is its turn.
    Wanted(u64),
    /// Another process has it, and this session waits, or is about to wait, in the server's queue.
    Waiting(usize),
    /// Another process has it, and no session can wait: it is tried again at this time.
    Polling(Time),
}

/// A lock that one caller has alone.
pub(super) struct Held<H> {
    pub(super) session: usize,
    pub(super) id: u64,
    pub(super) hold: H,
    pub(super) line: Option<line::Id>,
    pub(super) fence: i64,
    pub(super) hand_overs: i64,
    pub(super) since: Time,
}

pub(super) struct Slot<W, H> {
    pub(super) phase: Phase<H>,
    /// In the order of arrival, and so of their numbers.
    pub(super) queue: VecDeque<Waiter<W>>,
    /// How many of the queue have left.
    left: usize,
    /// The last attempt to wait for it failed.
    pub(super) failed: bool,
    /// The last wait for it would have closed a circle.
    pub(super) suspected: bool,
}

/// So many that left may stay in a queue, however short it is.
const FEW: usize = 32;

impl<W, H> Slot<W, H> {
    /// A slot of a lock that is to be tried for its first caller.
    pub(super) fn new(waiter: Waiter<W>) -> Self {
        Self {
            phase: Phase::Trying,
            queue: VecDeque::from([waiter]),
            left: 0,
            failed: false,
            suspected: false,
        }
    }

    /// The session that holds the lock.
    pub(super) fn session(&self) -> Option<usize> {
        match &self.phase {
            Phase::Held(held) => Some(held.session),
            Phase::Shared(shared) => Some(shared.session),
            _ => None,
        }
    }

    /// How the first who still waits wants it.
    pub(super) fn wanted(&mut self) -> Option<Way> {
        self.prune();
        self.queue.front().map(|first| first.way)
    }

    /// Whether nobody waits any more.
    pub(super) fn is_deserted(&mut self) -> bool {
        self.wanted().is_none()
    }

    /// Those who still wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Waiter<W>> {
        self.queue.iter().filter(|waiter| waiter.reply.is_some())
    }

    /// A caller leaves; answers who it was, if it still waited. It keeps its place in the queue until
    /// many have left, so that each costs little.
    pub(super) fn leave(&mut self, id: u64) -> Option<Waiter<W>> {
        let at = self.queue.binary_search_by_key(&id, |one| one.id).ok()?;
        let waiter = &mut self.queue[at];
        let left = Waiter {
            reply: Some(waiter.reply.take()?),
            ..*waiter
        };
        self.left += 1;
        self.prune();
        if self.left > FEW.max(self.queue.len() / 2) {
            self.queue.retain(|waiter| waiter.reply.is_some());
            self.left = 0;
        }
        Some(left)
    }

    /// Removes those that left, as far as they are in front.
    fn prune(&mut self) {
        while self.queue.front().is_some_and(|one| one.reply.is_none()) {
            self.queue.pop_front();
            self.left -= 1;
        }
    }

    /// Takes those out of the queue that `choose` chooses.
    pub(super) fn take_out(
        &mut self,
        mut choose: impl FnMut(&Waiter<W>) -> bool,
    ) -> Vec<Waiter<W>> {
        let mut chosen = Vec::new();
        for waiter in std::mem::take(&mut self.queue) {
            if waiter.reply.is_some() && choose(&waiter) {
                chosen.push(waiter);
            } else {
                self.queue.push_back(waiter);
            }
        }
        chosen
    }

    /// Those who do not wait are told once somebody has the lock.
    pub(super) fn refuse_impatient<R>(&mut self, effects: &mut Effects<W, H, R>) {
        let impatient = |waiter: &Waiter<W>| waiter.patience == Patience::None;
        if self.queue.iter().any(impatient) {
            for waiter in self.take_out(impatient) {
                effects.answer_waiter(waiter, Answer::Busy);
            }
        }
    }
}
