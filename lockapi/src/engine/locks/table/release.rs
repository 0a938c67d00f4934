//! A release: the lock is handed over within the process, or released at the server.

use std::time::Duration;

use super::effects::{Answer, Effects, Granted, Reason};
use super::session::{Command, Request};
use super::slot::Phase;
use super::{LockTable, Now};
use crate::engine::clock::Time;
use crate::fence::HAND_OVER_BITS;
use crate::key::LockId;
use crate::mutex::LockMode;

/// How often a lock is handed over within the process before other processes get their turn.
const MAX_HAND_OVERS: i64 = 64;
/// How long a lock is handed over within the process before it is released for the waiters at the server.
pub(super) const MAX_HELD: Duration = Duration::from_millis(32);
/// How long a process keeps a lock altogether, one caller after the other, before it stands back.
const MAX_KEPT: Duration = MAX_HELD;

/// How long it stands back, so that processes that poll find the lock free: a sixteenth of the time.
const STAND_BACK: Duration = Duration::from_millis(2);

const _: () = assert!(MAX_HAND_OVERS < 1 << HAND_OVER_BITS);

impl<W, H: Clone + Default, R> LockTable<W, H, R> {
    /// A holder releases the lock: hands it over within the process, or releases it at the server.
    pub(crate) fn release(
        &mut self,
        now: Now<'_>,
        lock: LockId,
        hold: u64,
        reply: Option<R>,
        effects: &mut Effects<W, H, R>,
    ) {
        match self.slots.get(&lock).map(|slot| &slot.phase) {
            Some(Phase::Held(held)) if held.id == hold => self.hand_over(now, lock, reply, effects),
            Some(Phase::Shared(_)) => self.end_share(now, lock, hold, reply, effects),
            _ => effects.released(reply, Err(Reason::Lost)),
        }
    }

    pub(super) fn hand_over(
        &mut self,
        now: Now<'_>,
        lock: LockId,
        reply: Option<R>,
        effects: &mut Effects<W, H, R>,
    ) {
        let id = self.number();
        // Nobody asks what time it is where nobody waits.
        let is_wanted = self
            .slots
            .get(&lock)
            .is_some_and(|slot| !slot.has_no_waiters());
        let at = is_wanted.then(now);
        if let Some(at) = at {
            self.expire_front(at, lock, effects);
        }
        let Some(slot) = self.slots.get_mut(&lock) else {
            return;
        };
        let exclusive = slot.wanted() == Some(LockMode::Exclusive);
        let Phase::Held(held) = &mut slot.phase else {
            return;
        };
        let session = held.session;
        self.owners.stop_holding(held.owner, lock);
        if let Some(at) = at.filter(|_| exclusive)
            && held.hand_overs < MAX_HAND_OVERS
            && at.saturating_sub(held.since) < MAX_HELD
            && let Some(next) = slot.queue.pop()
        {
            slot.kept = slot.kept.map(|(since, callers)| (since, callers + 1));
            held.hand_overs += 1;
            held.id = id;
            held.hold = H::default();
            held.owner = next.owner;
            self.owners.stop_waiting(&next, lock);
            self.owners.hold(next.owner, lock);
            let granted = Granted {
                lock,
                id,
                hold: held.hold.clone(),
                fence: held.fence + held.hand_overs,
                mark: self.sessions[session].mark,
                waited: next.waited(at),
            };
            effects.answer_waiter(next, Answer::Granted(granted));
            effects.released(reply, Ok(()));
            return;
        }
        self.release_at_server(now, session, lock, LockMode::Exclusive, reply, effects);
    }

    /// Lets the session that holds the lock release it, and tries it again for the waiters.
    pub(super) fn release_at_server(
        &mut self,
        now: Now<'_>,
        session: usize,
        lock: LockId,
        mode: LockMode,
        reply: Option<R>,
        effects: &mut Effects<W, H, R>,
    ) {
        self.sessions[session].held -= 1;
        let mut kept = None;
        if let Some(slot) = self.slots.get_mut(&lock) {
            slot.phase = Phase::Releasing;
            kept = slot.kept;
        }
        self.command(session, Command::Release { lock, mode }, reply, effects);
        if session > 0 {
            return;
        }
        // Behind the release, and so behind everybody who waits at the server.
        let is_tried = self.try_for_first(lock, effects);
        // Whoever keeps to the first caller has taken nothing from others.
        if let Some((since, 2..)) = kept.filter(|_| is_tried) {
            let at = now();
            if at.saturating_sub(since) >= MAX_KEPT {
                self.stand_back(lock, at, effects);
            }
        }
    }

    /// The process had the lock for its time.
    fn stand_back(&mut self, lock: LockId, now: Time, effects: &mut Effects<W, H, R>) {
        let requests = &mut self.sessions[0].requests;
        let tries =
            |one: &Request<R>| matches!(one.command, Command::Try { lock: it, .. } if it == lock);
        if requests.pop_if(|last| tries(last)).is_some() {
            if let Some(slot) = self.slots.get_mut(&lock) {
                slot.kept = None;
            }
            self.poll_at(lock, now + STAND_BACK, effects);
        }
    }

    /// A lock that was being released is free at the server.
    pub(super) fn released(&mut self, lock: LockId, effects: &mut Effects<W, H, R>) {
        let releasing = self.slots.get(&lock).map(|slot| &slot.phase);
        if matches!(releasing, Some(Phase::Releasing)) && !self.try_for_first(lock, effects) {
            self.slots.remove(&lock);
        }
    }
}
