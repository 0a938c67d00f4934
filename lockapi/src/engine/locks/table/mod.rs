//! Who holds and who waits for which session lock, in this process: a state machine without I/O.
//!
//! A lock that is in use has a [`Slot`]. Session 0, the main session, holds every lock that was free
//! when it was tried, and never waits. A lock that another process holds is waited for by one of the
//! other sessions, in the server's queue, for a slice of time; it stays with the session that got it.
//! When more locks are wanted than sessions can wait, they take turns, slice by slice. A session that
//! holds a lock may wait for another: a release then interrupts the wait.
//!
//! The table gets the requests of callers and the answers of the server; a [`change`](LockTable::change) returns
//! [`Effects`]. Workers
//! fetch what their session does next with [`next`](LockTable::next). The time comes in from outside.

mod effects;
mod failures;
mod interrupt;
#[cfg(test)]
mod invariants;
mod observe;
mod owners;
mod queue;
mod release;
mod session;
mod shared;
#[cfg(test)]
mod sim;
mod slot;
#[cfg(test)]
mod tests;
mod wait;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rustc_hash::FxHashMap;

pub(crate) use effects::{Answer, Effects, Granted, Reason};
#[cfg(test)]
pub(crate) use observe::LongHoldOrWait;
pub(crate) use observe::Observed;
use owners::Owners;
use session::Session;
pub(crate) use session::{Batch, Command, Next, Reply};
pub(crate) use slot::{Acquisition, WaitPolicy};
use slot::{Held, Phase, Slot, Waiter};
pub(crate) use wait::{Slice, WaitOutcome};

use crate::engine::clock::Time;
use crate::key::LockId;
use crate::mutex::{LockAnswer, LockMode};

/// Reads the clock, where that is needed.
pub(crate) type Now<'a> = &'a dyn Fn() -> Time;

/// What the table is made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Sessions that can wait.
    pub(crate) waiters: usize,
    /// Locks that are held or waited for at most.
    pub(crate) max_locks: usize,
    /// The interval at which an idle session that holds locks is checked.
    pub(crate) heartbeat: Duration,
    /// Whether holds and waits that last are observed.
    pub(crate) observed: bool,
    /// Where the random pauses start.
    pub(crate) seed: u64,
}

/// The locks of a process on one database: `W` answers a waiter, `H` is what a holder shares with the
/// table, `R` answers a release.
pub(crate) struct LockTable<W, H, R> {
    limits: Limits,
    slots: FxHashMap<LockId, Slot<W, H>>,
    sessions: Vec<Session<R>>,
    owners: Owners,
    /// Locks that no session waits for yet, by their turn.
    wanted: BTreeMap<u64, LockId>,
    /// Locks that are tried again at a time, because no session can wait for them.
    polls: BTreeSet<(Time, LockId)>,
    /// The last number that was given to a waiter, a hold or a turn.
    last: u64,
    /// When [`tick`](Self::tick) is to be called next.
    armed: Option<Time>,
    /// All timers that are set: a later one stays set when an earlier one is.
    timers: BTreeSet<Time>,
    /// Releases that are queued or under way.
    releases: usize,
    observe_at: Option<Time>,
    random: fastrand::Rng,
    closing: bool,
    /// Nothing is granted any more.
    closed: bool,
}

impl<W, H: Clone + Default, R> LockTable<W, H, R> {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            slots: FxHashMap::default(),
            sessions: (0..=limits.waiters).map(|_| Session::default()).collect(),
            owners: Owners::default(),
            wanted: BTreeMap::new(),
            polls: BTreeSet::new(),
            last: 0,
            armed: None,
            timers: BTreeSet::new(),
            releases: 0,
            observe_at: None,
            random: fastrand::Rng::with_seed(limits.seed),
            closing: false,
            closed: false,
            limits,
        }
    }

    /// Changes the table, and returns what has to be done once it is unlocked.
    pub(crate) fn change<T>(
        &mut self,
        now: Now<'_>,
        change: impl FnOnce(&mut Self, &mut Effects<W, H, R>) -> T,
    ) -> (T, Effects<W, H, R>) {
        let mut effects = Effects::new();
        let changed = change(self, &mut effects);
        self.interrupt_outdated(now, &mut effects);
        (changed, effects)
    }

    /// A caller requests a lock. Returns the number with which it can [leave](Self::leave).
    pub(crate) fn acquire(
        &mut self,
        now: Now<'_>,
        acquisition: Acquisition,
        reply: W,
        effects: &mut Effects<W, H, R>,
    ) -> u64 {
        let id = self.number();
        let Acquisition {
            lock,
            mode,
            owner,
            policy,
        } = acquisition;
        let waits = policy != WaitPolicy::NoWait;
        let shares = mode == LockMode::Shared;
        let closes_cycle = |table: &Self, owner| {
            table.closes_cycle(owner, lock) && !(shares && table.is_let_in(now, lock, owner))
        };
        if waits && owner.is_some_and(|owner| closes_cycle(self, owner)) {
            // Those whose time is over wait for nothing, and keep nobody out.
            self.expire_everywhere(now, effects);
            if owner.is_some_and(|owner| closes_cycle(self, owner)) {
                effects.answer(reply, Answer::Failed(Reason::Deadlock));
                return id;
            }
        }
        let mut waiter = Waiter {
            id,
            policy,
            mode,
            owner,
            since: None,
            reply: Some(reply),
        };
        if self.closed {
            effects.answer_waiter(waiter, Answer::Failed(Reason::Closed));
            return id;
        }
        let keeps_out =
            |slot: &Slot<W, H>| matches!(slot.phase, Phase::Shared(_)) && slot.queue.wants_alone();
        if self.slots.get(&lock).is_some_and(keeps_out) {
            // A writer whose time is over keeps nobody out.
            self.expire_front(now(), lock, effects);
        }
        if let Some(slot) = self.slots.get_mut(&lock) {
            effects.contended += 1;
            let may_be_free = match slot.phase {
                Phase::Trying | Phase::Releasing => true,
                Phase::Shared(_) => shares && !slot.queue.wants_alone(),
                _ => false,
            };
            if !waits && !may_be_free {
                effects.answer_waiter(waiter, Answer::Busy);
                return id;
            }
            waiter.since = Some(now());
            self.owners.wait(&waiter, lock);
            slot.queue.push(waiter);
            if matches!(slot.phase, Phase::Shared(_)) {
                self.admit(now, lock, effects);
            }
        } else if self.slots.len() >= self.limits.max_locks.saturating_add(self.releases) {
            effects.answer_waiter(waiter, Answer::Failed(Reason::Full));
        } else {
            self.owners.wait(&waiter, lock);
            self.slots.insert(lock, Slot::new(waiter));
            self.command(0, Command::Try { lock, mode }, None, effects);
            self.observe_later(now, effects);
        }
        id
    }

    /// Removes a caller, if it still waits.
    pub(crate) fn leave(
        &mut self,
        now: Now<'_>,
        lock: LockId,
        id: u64,
        effects: &mut Effects<W, H, R>,
    ) {
        drop(self.take_waiter(now, lock, id, effects));
    }

    fn take_waiter(
        &mut self,
        now: Now<'_>,
        lock: LockId,
        id: u64,
        effects: &mut Effects<W, H, R>,
    ) -> Option<Waiter<W>> {
        let slot = self.slots.get_mut(&lock)?;
        let waiter = slot.queue.leave(id)?;
        self.owners.stop_waiting(&waiter, lock);
        let no_waiters = slot.has_no_waiters();
        match slot.phase {
            Phase::Shared(_) => self.admit(now, lock, effects),
            Phase::Wanted(turn) if no_waiters => {
                self.wanted.remove(&turn);
                self.slots.remove(&lock);
            }
            Phase::Polling(at) if no_waiters => {
                self.polls.remove(&(at, lock));
                self.slots.remove(&lock);
            }
            Phase::Waiting(session) => {
                self.waiter_left(now, session, effects);
            }
            // The slot is removed when the answer that is under way finds no waiter.
            _ => {}
        }
        Some(waiter)
    }

    /// Answers those in front of a lock whose time is over: it is granted to others.
    fn expire_front(&mut self, now: Time, lock: LockId, effects: &mut Effects<W, H, R>) {
        if let Some(slot) = self.slots.get_mut(&lock) {
            let expired = slot.queue.take_expired_in_front(now);
            self.answer_expired(expired, lock, effects);
        }
    }

    /// Answers all whose time is over.
    fn expire_everywhere(&mut self, now: Now<'_>, effects: &mut Effects<W, H, R>) {
        let at = now();
        let slots = self.slots.iter();
        let over = slots.flat_map(|(lock, slot)| {
            let over = slot.queue.iter().filter(|waiter| waiter.is_over(at));
            over.map(|waiter| (*lock, waiter.id))
        });
        for (lock, id) in over.collect::<Vec<_>>() {
            if let Some(waiter) = self.take_waiter(now, lock, id, effects) {
                effects.answer_waiter(waiter, Answer::Busy);
            }
        }
    }

    fn answer_expired(
        &mut self,
        expired: Vec<Waiter<W>>,
        lock: LockId,
        effects: &mut Effects<W, H, R>,
    ) {
        for waiter in expired {
            self.owners.stop_waiting(&waiter, lock);
            effects.answer_waiter(waiter, Answer::Busy);
        }
    }

    /// Tries the lock in the mode of its first waiter; returns whether there is one.
    fn try_for_first(&mut self, lock: LockId, effects: &mut Effects<W, H, R>) -> bool {
        let Some(slot) = self.slots.get_mut(&lock) else {
            return false;
        };
        let Some(mode) = slot.wanted() else {
            return false;
        };
        slot.phase = Phase::Trying;
        self.command(0, Command::Try { lock, mode }, None, effects);
        true
    }

    /// Takes the answers to the oldest batch of a session that is under way.
    pub(crate) fn apply_replies(
        &mut self,
        now: Now<'_>,
        session: usize,
        answers: &[Reply],
        effects: &mut Effects<W, H, R>,
    ) {
        let Some(batch) = self.sessions[session].in_flight.pop_front() else {
            return;
        };
        for (request, reply) in batch.into_iter().zip(answers) {
            match (request.command, *reply) {
                (Command::Release { lock, .. }, reply) => {
                    self.releases -= 1;
                    let released = match reply {
                        Reply::Lock(LockAnswer::Released) => Ok(()),
                        _ => Err(Reason::Lost),
                    };
                    effects.released(request.reply, released);
                    self.released(lock, effects);
                }
                (
                    Command::Try { lock, .. },
                    Reply::Lock(taken @ (LockAnswer::Taken(_) | LockAnswer::Shared)),
                ) => self.taken(now, session, lock, taken, effects),
                (Command::Try { lock, .. }, _) => {
                    effects.contended += 1;
                    if let Some(slot) = self.slots.get_mut(&lock) {
                        slot.kept = None;
                    }
                    self.contended(now, lock, effects);
                }
                (Command::CheckWaiters { lock }, reply) => {
                    self.waiters_checked(now, lock, reply != Reply::HasWaiters(false), effects);
                }
                (Command::Interrupt { session, .. }, _) => self.interrupted(now, session, effects),
            }
        }
        self.assign(now, effects);
    }

    /// Grants a lock that a session has taken to its first waiter.
    fn taken(
        &mut self,
        now: Now<'_>,
        session: usize,
        lock: LockId,
        taken: LockAnswer,
        effects: &mut Effects<W, H, R>,
    ) {
        let id = self.number();
        // Whoever is in time by this look is given it.
        let now = now();
        self.expire_front(now, lock, effects);
        let Some(slot) = self.slots.get_mut(&lock) else {
            return;
        };
        slot.failed = false;
        slot.cycle_suspected = None;
        let (since, callers) = slot.kept.unwrap_or((now, 0));
        slot.kept = Some((since, callers + 1));
        let fence = match (taken, slot.wanted()) {
            (LockAnswer::Taken(fence), Some(LockMode::Exclusive)) => fence,
            (LockAnswer::Shared, Some(LockMode::Shared)) => {
                return self.share(&|| now, session, lock, effects);
            }
            _ => {
                // No waiter is left, or the first one wants another mode.
                slot.phase = Phase::Releasing;
                let mode = match taken {
                    LockAnswer::Shared => LockMode::Shared,
                    _ => LockMode::Exclusive,
                };
                return self.command(session, Command::Release { lock, mode }, None, effects);
            }
        };
        let Some(first) = slot.queue.pop() else {
            return;
        };
        let hold = H::default();
        slot.phase = Phase::Held(Held {
            session,
            id,
            hold: hold.clone(),
            owner: first.owner,
            fence,
            hand_overs: 0,
            since: now,
        });
        slot.refuse_no_wait(effects);
        self.owners.stop_waiting(&first, lock);
        self.owners.hold(first.owner, lock);
        let state = &mut self.sessions[session];
        state.held += 1;
        state.granted_at = now;
        let granted = Granted {
            lock,
            id,
            hold,
            fence,
            mark: state.mark,
            waited: first.waited(now),
        };
        effects.answer_waiter(first, Answer::Granted(granted));
    }

    /// Does what is due by now, for the timer that was set to `at`.
    pub(crate) fn tick(&mut self, at: Time, now: Time, effects: &mut Effects<W, H, R>) {
        self.timers.remove(&at);
        if self.armed != Some(at) {
            // Another one was set since, to an earlier time.
            return;
        }
        self.armed = None;
        while let Some((at, lock)) = self.polls.first().copied().filter(|(at, _)| *at <= now) {
            self.polls.remove(&(at, lock));
            match self.slots.get(&lock).map(|slot| &slot.phase) {
                Some(Phase::Polling(since)) if *since == at => {
                    let no_waiters = !self.try_for_first(lock, effects);
                    if no_waiters {
                        self.slots.remove(&lock);
                    }
                }
                Some(Phase::Shared(_)) => self.admit(&|| now, lock, effects),
                _ => {}
            }
        }
        for session in 0..self.sessions.len() {
            self.ping_if_due(session, now, effects);
            self.interrupt_if_due(session, now, effects);
        }
        self.assign(&|| now, effects);
        if self.observe_at.is_some_and(|at| at <= now) {
            self.observe_at = None;
            effects.observe = true;
        }
        let pings = self.sessions.iter().filter_map(|session| session.ping_at);
        let polls = self.polls.first().map(|(at, _)| *at);
        let interrupts = self.sessions.iter();
        let interrupts = interrupts.filter_map(|session| session.interrupt_at);
        let next = pings.chain(interrupts).chain(polls).chain(self.observe_at);
        if let Some(next) = next.min() {
            self.arm(next, effects);
        }
    }

    fn arm(&mut self, at: Time, effects: &mut Effects<W, H, R>) {
        if self.armed.is_none_or(|armed| at < armed) {
            self.armed = Some(at);
            if self.timers.insert(at) {
                effects.timers.push(at);
            }
        }
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Refuses all waiters, releases all locks, which are lost for their holders, and lets the workers
    /// end.
    pub(crate) fn close_all(&mut self, now: Now<'_>, effects: &mut Effects<W, H, R>) {
        self.closed = true;
        let slots = self.slots.iter();
        let waiting = slots.flat_map(|(lock, slot)| slot.queue.iter().map(|one| (*lock, one.id)));
        for (lock, id) in waiting.collect::<Vec<_>>() {
            if let Some(waiter) = self.take_waiter(now, lock, id, effects) {
                effects.answer_waiter(waiter, Answer::Failed(Reason::Closed));
            }
        }
        let mut held = Vec::new();
        for (lock, slot) in &self.slots {
            match &slot.phase {
                Phase::Held(one) => held.push((*lock, one.id, one.hold.clone())),
                Phase::Shared(shared) => {
                    let holds = shared.holds.iter();
                    held.extend(holds.map(|one| (*lock, one.id, one.hold.clone())));
                }
                _ => {}
            }
        }
        for (lock, id, hold) in held {
            effects.lost.push(hold);
            self.release(now, lock, id, None, effects);
        }
        self.close(effects);
    }

    /// Lets the workers end; locks that are still held are released by the end of their sessions.
    pub(crate) fn close(&mut self, effects: &mut Effects<W, H, R>) {
        self.closing = true;
        effects.wake = (1 << self.sessions.len()) - 1;
    }
}
