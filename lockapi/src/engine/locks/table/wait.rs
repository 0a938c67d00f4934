//! Waiting in the server's queue: which session waits for which lock, and for how long.
//!
//! A waiting statement holds a snapshot, which holds back vacuum, so a wait is cut into slices.
//! Within a slice the server grants in the order of arrival; between slices a lock goes to the end of
//! the server's queue. Locks that no session waits for have their turn in the order in which they
//! came here: with `n` of them and `w` sessions each has [`SHORT_SLICE`] in the server's queue in any
//! `SLICE + (n / w + 1) * (SHORT_SLICE + MAX_HELD)`; with owners that hold something, of which half of the slices
//! are longer, `SLICE` instead of `SHORT_SLICE`. A release on the session that waits interrupts a
//! slice; then the same lock goes on, behind those who came to the server meanwhile.
//!
//! A cycle through another process can be seen only while both waits have their turn. With turns of one length, those of
//! two processes may never meet. A longer slice of one waits until the other lock has its turn.

use std::time::Duration;

use super::effects::{Answer, Effects, Reason};
use super::release::MAX_HELD;
use super::slot::{Phase, Slot, Suspected, WaitPolicy};
use super::{LockTable, Now};
use crate::engine::clock::Time;
use crate::error::{ErrorKind, Failure};
use crate::key::LockId;
use crate::mutex::{LockAnswer, LockMode};

/// The longest wait in the server's queue.
const SLICE: Duration = Duration::from_secs(1);
/// The longest while other locks wait for their turn: longer than other processes pass a lock on
/// among themselves.
const SHORT_SLICE: Duration = Duration::from_millis(250);
/// One of so many turns of lock owners that hold something is longer while other locks wait for theirs.
const LONG_TURNS: u64 = 2;
/// How long a session that could not be opened is not used, beyond the time that this took.
const DOWN: Duration = Duration::from_secs(1);
/// The bounds of the pause between attempts when no session can wait, in milliseconds.
const POLL_MILLIS: std::ops::Range<u64> = 20..120;

/// A session that waits, or is about to.
pub(super) struct Wait {
    pub(super) lock: LockId,
    pub(super) mode: LockMode,
    pub(super) stage: Stage,
    pub(super) turn: u64,
    pub(super) since: Time,
    /// For how long it waits at the server, and until when: that is not known before it is sent.
    pub(super) time: Duration,
    pub(super) until: Time,
    /// The locks that are held by the lock owners which wait for this one, as the server knows them; in order.
    pub(super) holding: Vec<LockId>,
    /// Whether an interrupt was requested.
    pub(super) interrupted: bool,
}

/// How far a wait is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Assigned,
    /// The worker is about to send it, or has.
    Begun,
    /// It was answered, and what it left is being cleared.
    Ended,
}

impl Wait {
    pub(super) fn is_assigned(&self) -> bool {
        self.stage == Stage::Assigned
    }

    pub(super) fn lock(&self) -> LockId {
        self.lock
    }
}

/// One wait in the server's queue.
#[derive(Debug)]
pub(crate) struct Slice {
    pub(crate) lock: LockId,
    pub(crate) mode: LockMode,
    pub(crate) time: Duration,
    /// The locks that are held by the lock owners which wait for this one.
    pub(crate) holding: Vec<LockId>,
}

/// How a slice ended. Whatever it left at the server is cleared.
#[derive(Debug)]
pub(crate) enum WaitOutcome {
    Granted(LockAnswer),
    NotGranted,
    /// Not begun: the owners of these locks would have waited for themselves.
    Cycle(Vec<LockId>),
    /// The statement failed, and the session goes on.
    Failed(Failure),
    /// The session could not be opened.
    Unopened,
}

impl<W, H: Clone + Default, R> LockTable<W, H, R> {
    /// Another session holds the lock: a session waits for it at the server.
    pub(super) fn contended(&mut self, now: Now<'_>, lock: LockId, effects: &mut Effects<W, H, R>) {
        let Some(slot) = self.slots.get_mut(&lock) else {
            return;
        };
        slot.refuse_no_wait(effects);
        let now = now();
        let expired = slot.queue.take_expired(now);
        self.answer_expired(expired, lock, effects);
        let Some(slot) = self.slots.get_mut(&lock) else {
            return;
        };
        if slot.has_no_waiters() {
            self.slots.remove(&lock);
            return;
        }
        for waiter in slot.queue.iter_mut() {
            waiter.since.get_or_insert(now);
        }
        // A cycle is looked for again before the other wait loses its turn.
        let turn = slot.cycle_suspected.as_ref().map(|seen| seen.turn);
        self.enqueue(lock, now, turn, effects);
    }

    /// Queues the lock for a session that waits, or for polling if none can wait. A wait that was
    /// interrupted keeps its turn.
    fn enqueue(
        &mut self,
        lock: LockId,
        now: Time,
        turn: Option<u64>,
        effects: &mut Effects<W, H, R>,
    ) {
        let turn = turn.unwrap_or_else(|| self.number());
        let can_wait = self
            .sessions
            .iter()
            .skip(1)
            .any(|one| one.down_until <= now);
        let Some(slot) = self.slots.get_mut(&lock) else {
            return;
        };
        if slot.has_no_waiters() {
            self.slots.remove(&lock);
        } else if can_wait {
            slot.phase = Phase::Wanted(turn);
            self.wanted.insert(turn, lock);
        } else {
            self.poll_later(lock, now, effects);
        }
    }

    fn poll_later(&mut self, lock: LockId, now: Time, effects: &mut Effects<W, H, R>) {
        let pause = Duration::from_millis(self.random.u64(POLL_MILLIS));
        self.poll_at(lock, now + pause, effects);
    }

    pub(super) fn poll_at(&mut self, lock: LockId, at: Time, effects: &mut Effects<W, H, R>) {
        if let Some(slot) = self.slots.get_mut(&lock) {
            slot.phase = Phase::Polling(at);
            self.polls.insert((at, lock));
            self.arm(at, effects);
        }
    }

    /// Assigns the locks whose turn it is to free sessions.
    pub(super) fn assign(&mut self, now: Now<'_>, effects: &mut Effects<W, H, R>) {
        if self.wanted.is_empty() {
            return;
        }
        let now = now();
        while let Some((turn, lock)) = self.wanted.first_key_value().map(|(t, l)| (*t, *l)) {
            let Some(session) = self.free_session(now) else {
                // A session that was just given a lock may become free by time.
                let given = self.sessions.iter().skip(1);
                let given = given.filter(|one| one.wait.is_none() && one.held > 0);
                let at = given
                    .map(|one| one.granted_at + MAX_HELD)
                    .filter(|at| *at > now);
                if let Some(at) = at.min() {
                    self.arm(at, effects);
                }
                return;
            };
            self.wanted.remove(&turn);
            let Some(slot) = self.slots.get_mut(&lock) else {
                continue;
            };
            slot.phase = Phase::Waiting(session);
            self.sessions[session].wait = Some(Wait {
                lock,
                mode: slot.wanted().unwrap_or(LockMode::Exclusive),
                stage: Stage::Assigned,
                turn,
                since: now,
                time: Duration::ZERO,
                until: Time::MAX,
                holding: Vec::new(),
                interrupted: false,
            });
            self.wake_session(session, effects);
        }
    }

    /// A session that may wait. One that holds nothing is better; one that was just given a lock is
    /// likely to release it soon, which would interrupt the wait.
    fn free_session(&self, now: Time) -> Option<usize> {
        let sessions = self.sessions.iter().enumerate().skip(1);
        let free = sessions.filter(|(_, one)| {
            one.wait.is_none()
                && !one.interrupting
                && one.requests.is_empty()
                && one.down_until <= now
                && (one.held == 0 || one.granted_at + MAX_HELD <= now)
        });
        free.min_by_key(|(_, one)| (one.held, !one.running))
            .map(|(session, _)| session)
    }

    /// Begins the wait that a session was assigned; `None` if its callers are gone.
    pub(super) fn begin_wait(
        &mut self,
        now: Now<'_>,
        session: usize,
        effects: &mut Effects<W, H, R>,
    ) -> Option<Slice> {
        let lock = self.sessions[session].wait.as_ref()?.lock;
        if let Some(slot) = self.slots.get_mut(&lock) {
            let expired = slot.queue.take_expired(now());
            self.answer_expired(expired, lock, effects);
        }
        let slot = self.slots.get(&lock);
        let Some(mode) = slot.and_then(Slot::wanted) else {
            self.sessions[session].wait = None;
            self.slots.remove(&lock);
            self.assign(now, effects);
            return None;
        };
        let now = now();
        let slot = self.slots.get(&lock)?;
        let longest = slot.queue.iter().map(|waiter| match waiter.policy {
            WaitPolicy::NoWait => Duration::ZERO,
            WaitPolicy::Until(at) => at.saturating_sub(now),
            WaitPolicy::Forever => SLICE,
        });
        let longest = longest.max().unwrap_or(SLICE);
        let holding = self.held_behind(now, slot.queue.owners());
        let is_long =
            self.wanted.is_empty() || !holding.is_empty() && self.random.u64(..LONG_TURNS) == 0;
        let most = match (is_long, holding.is_empty()) {
            (false, _) => SHORT_SLICE,
            (true, true) => SLICE,
            // Sessions that wait for each other look for a cycle between two slices, and not at
            // the same time.
            (true, false) => SLICE.mul_f64(0.4 + 0.4 * self.random.f64()),
        };
        let time = longest.clamp(Duration::from_millis(1), most);
        if let Some(wait) = &mut self.sessions[session].wait {
            wait.mode = mode;
            wait.stage = Stage::Begun;
            wait.since = now;
            wait.time = time;
            wait.holding.clone_from(&holding);
        }
        Some(Slice {
            lock,
            mode,
            time,
            holding,
        })
    }

    /// The wait that the session has begun is about to be sent: answers whether it still is to be. Opening the session took its
    /// time, and its own begins now.
    pub(crate) fn is_wanted(&mut self, session: usize, now: Time) -> bool {
        let wait = self.sessions[session].wait.as_mut();
        let Some(wait) = wait.filter(|wait| !wait.interrupted) else {
            return false;
        };
        (wait.since, wait.until) = (now, now + wait.time);
        true
    }

    /// The server has answered the wait: it is not interrupted any more. Answers whether an interrupt
    /// is under way, which what is sent next has to wait for.
    pub(crate) fn answered(&mut self, session: usize) -> bool {
        let state = &mut self.sessions[session];
        if let Some(wait) = &mut state.wait {
            wait.stage = Stage::Ended;
        }
        state.interrupting
    }

    /// The session waits no longer, and nothing of the wait is left at the server but the lock if it
    /// was granted.
    pub(crate) fn waited(
        &mut self,
        now: Now<'_>,
        session: usize,
        waited: WaitOutcome,
        effects: &mut Effects<W, H, R>,
    ) {
        let state = &mut self.sessions[session];
        let Some(wait) = state.wait.take() else {
            return;
        };
        // The next wait is not to be interrupted in its place.
        state.interrupt_at = None;
        let lock = wait.lock;
        match waited {
            WaitOutcome::Granted(taken) => self.taken(now, session, lock, taken, effects),
            // How the server says that it was interrupted depends on its language. What its detector
            // takes for a deadlock is none: this session holds for others than it waits for.
            WaitOutcome::Failed(failure)
                if wait.interrupted || failure.kind() == ErrorKind::Deadlock =>
            {
                if let Some(slot) = self.slots.get_mut(&lock) {
                    slot.cycle_suspected = None;
                }
                self.end_turn(&wait, now(), effects);
            }
            WaitOutcome::NotGranted => {
                if let Some(slot) = self.slots.get_mut(&lock) {
                    (slot.failed, slot.cycle_suspected) = (false, None);
                }
                self.end_turn(&wait, now(), effects);
            }
            WaitOutcome::Cycle(held) => self.cycle(now, &wait, &held, effects),
            WaitOutcome::Failed(failure) => self.wait_failed(now(), lock, &failure, effects),
            WaitOutcome::Unopened => {
                let now = now();
                let took = now.saturating_sub(wait.since);
                self.sessions[session].down_until = now + took + DOWN;
                effects.unopened += 1;
                if self.slots.get(&lock).is_some_and(Slot::has_no_waiters) {
                    self.slots.remove(&lock);
                } else {
                    self.poll_later(lock, now, effects);
                }
                if self.sessions.iter().skip(1).all(|one| one.down_until > now) {
                    for lock in std::mem::take(&mut self.wanted).into_values() {
                        self.poll_later(lock, now, effects);
                    }
                }
            }
        }
        self.assign(now, effects);
    }

    /// A slice is over. One that was interrupted goes on, until it has had its time.
    fn end_turn(&mut self, wait: &Wait, now: Time, effects: &mut Effects<W, H, R>) {
        let Some(slot) = self.slots.get_mut(&wait.lock) else {
            return;
        };
        slot.turn_used += now.saturating_sub(wait.since);
        let goes_on = wait.interrupted && slot.turn_used < SHORT_SLICE;
        if !goes_on {
            slot.turn_used = Time::ZERO;
        }
        let turn = goes_on.then_some(wait.turn);
        self.enqueue(wait.lock, now, turn, effects);
    }

    /// A wait failed: it is tried once more, and then its waiters get the error.
    pub(super) fn wait_failed(
        &mut self,
        now: Time,
        lock: LockId,
        failure: &Failure,
        effects: &mut Effects<W, H, R>,
    ) {
        let Some(slot) = self.slots.get_mut(&lock) else {
            return;
        };
        if std::mem::replace(&mut slot.failed, true) {
            self.refuse(lock, &Reason::Failure(failure.clone()), effects);
        } else {
            self.enqueue(lock, now, None, effects);
        }
    }

    /// The deadlock check of a session found that the holder of the lock waits for one of the locks in
    /// `held`, which owners that wait for it here hold. That wait may have been about to end: a cycle counts
    /// once it is found twice.
    fn cycle(
        &mut self,
        now: Now<'_>,
        wait: &Wait,
        held: &[LockId],
        effects: &mut Effects<W, H, R>,
    ) {
        let lock = wait.lock;
        let now = now();
        let Some(slot) = self.slots.get_mut(&lock) else {
            return;
        };
        let expired = slot.queue.take_expired(now);
        self.answer_expired(expired, lock, effects);
        let Some(slot) = self.slots.get_mut(&lock) else {
            return;
        };
        let before = slot.cycle_suspected.take();
        let mut seen = held.to_vec();
        seen.retain(|lock| {
            before
                .as_ref()
                .is_some_and(|before| before.held.contains(lock))
        });
        if seen.is_empty() {
            slot.cycle_suspected = Some(Suspected {
                turn: wait.turn,
                held: held.to_vec(),
            });
            if slot.has_no_waiters() {
                self.slots.remove(&lock);
            } else {
                self.poll_later(lock, now, effects);
            }
            return;
        }
        let owners: Vec<_> = self.slots.get(&lock).into_iter().collect();
        let owners: Vec<_> = owners
            .iter()
            .flat_map(|slot| slot.queue.owners())
            .filter(|owner| {
                self.held_behind(now, [*owner])
                    .iter()
                    .any(|own| seen.contains(own))
            })
            .collect();
        if let Some(slot) = self.slots.get_mut(&lock) {
            let closes = slot.queue.take_out(|one| {
                one.policy != WaitPolicy::NoWait
                    && one.owner.is_some_and(|owner| owners.contains(&owner))
            });
            for waiter in closes {
                self.owners.stop_waiting(&waiter, lock);
                effects.answer_waiter(waiter, Answer::Failed(Reason::Deadlock));
            }
        }
        self.enqueue(lock, now, None, effects);
    }
}
