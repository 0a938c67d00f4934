//! One lock that is held or waited for.

use super::effects::{Answer, Effects};
use super::queue::Queue;
use super::shared::Shared;
use crate::engine::clock::Time;
use crate::key::LockId;
use crate::mutex::{LockMode, OwnerId};

/// How long a caller waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitPolicy {
    NoWait,
    Until(Time),
    Forever,
}

/// The request of a caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acquisition {
    pub(crate) lock: LockId,
    pub(crate) mode: LockMode,
    /// The lock owner, if there is one.
    pub(crate) owner: Option<OwnerId>,
    pub(crate) policy: WaitPolicy,
}

/// A caller in the queue of a lock.
pub(super) struct Waiter<W> {
    pub(super) id: u64,
    pub(super) policy: WaitPolicy,
    pub(super) mode: LockMode,
    pub(super) owner: Option<OwnerId>,
    /// Since when it waits for another; unknown of one whose attempt is under way.
    pub(super) since: Option<Time>,
    /// `None` once it has left.
    pub(super) reply: Option<W>,
}

impl<W> Waiter<W> {
    /// How long it has waited for another.
    pub(super) fn waited(&self, now: Time) -> Option<Time> {
        self.since.map(|since| now.saturating_sub(since))
    }

    /// Whether its time is over, although it has not left: its future may not be polled.
    pub(super) fn is_over(&self, now: Time) -> bool {
        matches!(self.policy, WaitPolicy::Until(at) if at <= now)
    }

    /// Whether it waits for the lock, to have it alone.
    pub(super) fn waits_alone(&self) -> bool {
        self.mode == LockMode::Exclusive && self.policy != WaitPolicy::NoWait
    }
}

/// The state of a lock.
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

/// A lock that one caller holds exclusively.
pub(super) struct Held<H> {
    pub(super) session: usize,
    pub(super) id: u64,
    pub(super) hold: H,
    pub(super) owner: Option<OwnerId>,
    pub(super) fence: i64,
    pub(super) hand_overs: i64,
    pub(super) since: Time,
}

/// A cycle that was seen once.
pub(super) struct Suspected {
    /// The turn of the wait.
    pub(super) turn: u64,
    /// The locks held behind it that are in the cycle.
    pub(super) held: Vec<LockId>,
}

pub(super) struct Slot<W, H> {
    pub(super) phase: Phase<H>,
    pub(super) queue: Queue<W>,
    /// The last attempt to wait for it failed.
    pub(super) failed: bool,
    /// What the last wait for it found, if it would have closed a cycle.
    pub(super) cycle_suspected: Option<Suspected>,
    /// How much of its turn the lock has used: the time for which sessions waited for it.
    pub(super) turn_used: Time,
    /// Since when this process holds it, one caller after the other, and the number of these callers.
    pub(super) kept: Option<(Time, u32)>,
}

impl<W, H> Slot<W, H> {
    /// A slot of a lock that is to be tried for its first caller.
    pub(super) fn new(waiter: Waiter<W>) -> Self {
        let mut queue = Queue::default();
        queue.push(waiter);
        Self {
            phase: Phase::Trying,
            queue,
            failed: false,
            cycle_suspected: None,
            turn_used: Time::ZERO,
            kept: None,
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

    /// The mode that the first waiter wants.
    pub(super) fn wanted(&self) -> Option<LockMode> {
        self.queue.wanted()
    }

    /// Whether there are no waiters.
    pub(super) fn has_no_waiters(&self) -> bool {
        self.queue.is_empty()
    }

    /// Refuses callers that do not wait, once the lock is held.
    pub(super) fn refuse_no_wait<R>(&mut self, effects: &mut Effects<W, H, R>) {
        for waiter in self.queue.take_no_wait() {
            effects.answer_waiter(waiter, Answer::Busy);
        }
    }
}
