//! Waiting in the server's queue: which session waits for which lock, and for how long.
//!
//! A waiting statement holds a snapshot, which holds back vacuum, so a wait is cut into slices.
//! Within a slice the server grants in the order of arrival; between slices a lock goes to the end of
//! the server's queue. Locks that no session waits for have their turn in the order in which they
//! came here: with `n` of them and `w` sessions each is in the server's queue for at least
//! [`SHORT_SLICE`] in any `SLICE + (n / w + 1) * SHORT_SLICE`.

use std::time::Duration;

use super::effects::{Answer, Effects, Reason};
use super::session::Command;
use super::slot::{Patience, Phase, Slot};
use super::{LockTable, MAX_HELD, Now};
use crate::engine::clock::Time;
use crate::error::{ErrorKind, Failure};
use crate::key::LockId;
use crate::mutex::{Stepped, Way};

/// The longest wait in the server's queue.
const SLICE: Duration = Duration::from_secs(1);
/// The longest while other locks wait for their turn: longer than other processes pass a lock on
/// among themselves.
const SHORT_SLICE: Duration = Duration::from_millis(250);
/// How long a session that could not be opened is not used.
const DOWN: Duration = Duration::from_secs(1);
/// The bounds of the pause between attempts when no session can wait, in milliseconds.
const POLL_MILLIS: std::ops::Range<u64> = 20..120;

/// A session that waits, or is about to.
pub(super) struct Wait {
    lock: LockId,
    /// The worker has begun it.
    pub(super) begun: bool,
    /// It is on behalf of lines of work that hold other locks.
    holding: bool,
    /// It was told to end.
    interrupted: bool,
}

impl Wait {
    pub(super) fn lock(&self) -> LockId {
        self.lock
    }
}

/// One wait in the server's queue.
#[derive(Debug)]
pub(crate) struct Slice {
    pub(crate) lock: LockId,
    pub(crate) way: Way,
    pub(crate) time: Duration,
    /// What is held by lines of work that wait for this.
    pub(crate) holding: Vec<LockId>,
}

/// How a slice ended. Whatever it left at the server is cleared.
#[derive(Debug)]
pub(crate) enum Waited {
    Granted(Stepped),
    InVain,
    /// It was not begun: who holds these locks would have waited for themselves.
    Circle(Vec<LockId>),
    /// The statement failed, and the session goes on.
    Failed(Failure),
    /// The session could not be opened.
    Unopened,
}

impl<W, H: Clone + Default, R> LockTable<W, H, R> {
    /// Another session holds the lock: those who wait for it do so at the server.
    pub(super) fn contended(&mut self, now: Now<'_>, lock: LockId, effects: &mut Effects<W, H, R>) {
        let Some(slot) = self.slots.get_mut(&lock) else {
            return;
        };
        slot.refuse_impatient(effects);
        if slot.is_deserted() {
            self.slots.remove(&lock);
            return;
        }
        let now = now();
        for waiter in &mut slot.queue {
            waiter.since.get_or_insert(now);
        }
        self.want(lock, now, effects);
    }

    /// Lines the lock up for a session that waits, or has it polled where none can.
    fn want(&mut self, lock: LockId, now: Time, effects: &mut Effects<W, H, R>) {
        let turn = self.number();
        let can_wait = self
            .sessions
            .iter()
            .skip(1)
            .any(|one| one.down_until <= now);
        let Some(slot) = self.slots.get_mut(&lock) else {
            return;
        };
        if slot.is_deserted() {
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
        if let Some(slot) = self.slots.get_mut(&lock) {
            let at = now + pause;
            slot.phase = Phase::Polling(at);
            self.polls.insert((at, lock));
            self.arm(at, effects);
        }
    }

    /// Has sessions that are free wait for the locks whose turn it is.
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
            if let Some(slot) = self.slots.get_mut(&lock) {
                slot.phase = Phase::Waiting(session);
            }
            self.sessions[session].wait = Some(Wait {
                lock,
                begun: false,
                holding: false,
                interrupted: false,
            });
            self.rouse(session, effects);
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

    /// Begins the wait that a session was assigned; `None` when nobody wants it any more.
    pub(super) fn begin_wait(
        &mut self,
        now: Now<'_>,
        session: usize,
        effects: &mut Effects<W, H, R>,
    ) -> Option<Slice> {
        let lock = self.sessions[session].wait.as_ref()?.lock;
        let slot = self.slots.get_mut(&lock);
        let Some(way) = slot.and_then(Slot::wanted) else {
            self.sessions[session].wait = None;
            self.slots.remove(&lock);
            self.assign(now, effects);
            return None;
        };
        let now = now();
        let slot = self.slots.get(&lock)?;
        let longest = slot.waiting().map(|waiter| match waiter.patience {
            Patience::None => Duration::ZERO,
            Patience::Until(at) => at.saturating_sub(now),
            Patience::Forever => SLICE,
        });
        let longest = longest.max().unwrap_or(SLICE);
        let lines = slot.waiting().filter_map(|waiter| waiter.line);
        let mut holding: Vec<LockId> = lines.flat_map(|line| self.held_behind(line)).collect();
        holding.sort_unstable();
        holding.dedup();
        let most = match (self.wanted.is_empty(), holding.is_empty()) {
            (false, _) => SHORT_SLICE,
            (true, true) => SLICE,
            // Sessions that wait for each other look for a circle between two slices, and not at
            // the same time.
            (true, false) => SLICE.mul_f64(0.4 + 0.4 * self.random.f64()),
        };
        if let Some(wait) = &mut self.sessions[session].wait {
            wait.begun = true;
            wait.holding = !holding.is_empty();
        }
        Some(Slice {
            lock,
            way,
            time: longest.clamp(Duration::from_millis(1), most),
            holding,
        })
    }

    /// The session waits no longer, and nothing of the wait is left at the server but the lock if it
    /// was granted.
    pub(crate) fn waited(
        &mut self,
        now: Now<'_>,
        session: usize,
        waited: Waited,
        effects: &mut Effects<W, H, R>,
    ) {
        let Some(wait) = self.sessions[session].wait.take() else {
            return;
        };
        let lock = wait.lock;
        match waited {
            Waited::Granted(taken) => self.taken(now, session, lock, taken, effects),
            // How the server says that it was interrupted depends on its language. What its detector
            // takes for a deadlock is none: this session holds for others than it waits for.
            Waited::Failed(failure)
                if wait.interrupted || failure.kind() == ErrorKind::Deadlock =>
            {
                self.want(lock, now(), effects);
            }
            Waited::InVain => {
                if let Some(slot) = self.slots.get_mut(&lock) {
                    (slot.failed, slot.suspected) = (false, false);
                }
                self.want(lock, now(), effects);
            }
            Waited::Circle(held) => self.circle(now, lock, &held, effects),
            Waited::Failed(failure) => self.wait_failed(now(), lock, &failure, effects),
            Waited::Unopened => {
                let now = now();
                self.sessions[session].down_until = now + DOWN;
                effects.unopened += 1;
                self.want(lock, now, effects);
                if self.sessions.iter().skip(1).all(|one| one.down_until > now) {
                    for lock in std::mem::take(&mut self.wanted).into_values() {
                        self.poll_later(lock, now, effects);
                    }
                }
            }
        }
        self.assign(now, effects);
    }

    /// A wait failed: it is tried once more, and then its waiters are told.
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
            self.want(lock, now, effects);
        }
    }

    /// A session was about to wait for the lock, and saw that somebody who holds it waits for one of
    /// those `held` by lines that wait for it here. What it saw may have been about to end: a circle
    /// is one that is seen twice.
    fn circle(
        &mut self,
        now: Now<'_>,
        lock: LockId,
        held: &[LockId],
        effects: &mut Effects<W, H, R>,
    ) {
        let Some(slot) = self.slots.get_mut(&lock) else {
            return;
        };
        if !std::mem::replace(&mut slot.suspected, true) {
            if slot.is_deserted() {
                self.slots.remove(&lock);
            } else {
                self.poll_later(lock, now(), effects);
            }
            return;
        }
        let lines: Vec<_> = self.slots.get(&lock).into_iter().collect();
        let lines: Vec<_> = lines
            .iter()
            .flat_map(|slot| slot.waiting().filter_map(|waiter| waiter.line))
            .filter(|line| self.held_behind(*line).iter().any(|own| held.contains(own)))
            .collect();
        if let Some(slot) = self.slots.get_mut(&lock) {
            let closes = slot.take_out(|one| one.line.is_some_and(|line| lines.contains(&line)));
            slot.suspected = false;
            for waiter in closes {
                self.owners.unwait(&waiter, lock);
                effects.answer_waiter(waiter, Answer::Failed(Reason::Deadlock));
            }
        }
        self.want(lock, now(), effects);
    }

    /// A caller left whose lock this session waits for, or is about to.
    pub(super) fn waiter_left(
        &mut self,
        session: usize,
        deserted: bool,
        in_line: bool,
        effects: &mut Effects<W, H, R>,
    ) {
        let Some(wait) = &self.sessions[session].wait else {
            return;
        };
        // Others are told that lines wait which do not, or the session is of use elsewhere.
        let in_the_way = wait.holding && in_line || deserted && !self.wanted.is_empty();
        if in_the_way {
            self.interrupt(session, effects);
        }
    }

    /// Ends the wait of a session, if it waits at the server.
    pub(super) fn interrupt(&mut self, session: usize, effects: &mut Effects<W, H, R>) {
        let state = &mut self.sessions[session];
        let Some(wait) = state.wait.as_mut().filter(|wait| wait.begun) else {
            return;
        };
        if std::mem::replace(&mut state.interrupting, true) {
            return;
        }
        wait.interrupted = true;
        let interrupt = Command::Interrupt {
            session,
            mark: state.mark,
            process: state.process,
        };
        self.command(0, interrupt, None, effects);
    }

    /// No interrupt can hit what the session sends from now on.
    pub(super) fn interrupted(&mut self, session: usize, effects: &mut Effects<W, H, R>) {
        self.sessions[session].interrupting = false;
        self.rouse(session, effects);
    }
}
