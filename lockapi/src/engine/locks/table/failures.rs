//! What becomes of locks and callers when a statement fails, or a session or its worker ends.

use super::effects::{Answer, Effects, Reason};
use super::session::{Command, Request};
use super::slot::Phase;
use super::{LockTable, Now};
use crate::error::Failure;
use crate::key::LockId;

impl<W, H: Clone + Default, R> LockTable<W, H, R> {
    /// The session is gone and its locks with it. What was under way is tried once more.
    pub(crate) fn session_lost(
        &mut self,
        now: Now<'_>,
        session: usize,
        failure: &Failure,
        effects: &mut Effects<W, H, R>,
    ) {
        let state = &mut self.sessions[session];
        (state.held, state.alone) = (0, 0);
        (state.mark, state.process) = (0, 0);
        (state.ping_at, state.ping_due, state.interrupt_at) = (None, false, None);
        let in_flight: Vec<_> = state.in_flight.drain(..).flatten().collect();
        let queued = std::mem::take(&mut state.requests);
        let wait = state.wait.take();
        let held_here: Vec<LockId> = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.session() == Some(session))
            .map(|(lock, _)| *lock)
            .collect();
        for lock in held_here {
            self.lose(lock, effects);
            self.released(lock, effects);
        }
        for request in in_flight {
            match request.command {
                Command::Try { .. } if !request.again => {
                    let again = true;
                    self.put(session, Request { again, ..request }, effects);
                }
                _ => self.fail(now, request, failure, effects),
            }
        }
        for request in queued {
            match request.command {
                Command::Release { .. } => self.fail(now, request, failure, effects),
                _ => self.put(session, request, effects),
            }
        }
        if let Some(wait) = wait {
            self.wait_failed(now(), wait.lock(), failure, effects);
        }
        self.assign(now, effects);
    }

    /// The session could not be opened: fails what is under way or queued there.
    pub(crate) fn refuse_session(
        &mut self,
        now: Now<'_>,
        session: usize,
        failure: &Failure,
        effects: &mut Effects<W, H, R>,
    ) {
        let state = &mut self.sessions[session];
        let mut requests: Vec<_> = state.in_flight.drain(..).flatten().collect();
        requests.append(&mut state.requests);
        for request in requests {
            self.fail(now, request, failure, effects);
        }
        self.assign(now, effects);
    }

    /// The statement of the oldest batch failed, and nothing that it was about is locked: releases
    /// are done, and of several attempts each is made alone.
    pub(crate) fn batch_failed(
        &mut self,
        now: Now<'_>,
        session: usize,
        failure: &Failure,
        effects: &mut Effects<W, H, R>,
    ) {
        let Some(batch) = self.sessions[session].in_flight.pop_front() else {
            return;
        };
        let is_try = |request: &Request<R>| matches!(request.command, Command::Try { .. });
        let (tries, others): (Vec<_>, Vec<_>) = batch.into_iter().partition(is_try);
        for request in others {
            match request.command {
                Command::Release { lock, .. } => {
                    self.releases -= 1;
                    effects.released(request.reply, Ok(()));
                    self.released(lock, effects);
                }
                _ => self.fail(now, request, failure, effects),
            }
        }
        if tries.len() > 1 {
            let state = &mut self.sessions[session];
            state.alone += tries.len();
            state.requests.splice(0..0, tries);
            self.wake_session(session, effects);
        } else {
            for request in tries {
                if request.again {
                    self.fail(now, request, failure, effects);
                } else {
                    let again = true;
                    self.put(session, Request { again, ..request }, effects);
                }
            }
        }
        self.assign(now, effects);
    }

    /// The worker of a session ended before its time: it could not be started, it panicked, or its
    /// runtime dropped it. Its connection went with it. Another is started when there is something to
    /// do; after one that never began, when it is next needed.
    pub(crate) fn worker_ended(
        &mut self,
        now: Now<'_>,
        session: usize,
        began: bool,
        failure: &Failure,
        effects: &mut Effects<W, H, R>,
    ) {
        self.sessions[session].running = false;
        if began {
            return self.session_lost(now, session, failure, effects);
        }
        // Nothing was ever sent. Failing it may ask for more of this session, which would start the
        // worker at once and for ever.
        let running = std::mem::replace(&mut self.sessions[session].running, true);
        debug_assert!(!running, "it ended");
        if session > 0 && self.sessions[session].wait.is_some() {
            self.waited(now, session, super::WaitOutcome::Unopened, effects);
        }
        while !self.sessions[session].requests.is_empty() {
            self.refuse_session(now, session, failure, effects);
        }
        self.session_lost(now, session, failure, effects);
        self.sessions[session].running = false;
    }

    fn put(&mut self, session: usize, request: Request<R>, effects: &mut Effects<W, H, R>) {
        self.sessions[session].requests.push(request);
        if self.sessions[session].requests.len() == 1 {
            self.wake_session(session, effects);
        }
    }

    /// A command was not carried out, and what it was about is not held.
    fn fail(
        &mut self,
        now: Now<'_>,
        request: Request<R>,
        failure: &Failure,
        effects: &mut Effects<W, H, R>,
    ) {
        match request.command {
            Command::Try { lock, .. } => {
                self.refuse(lock, &Reason::Failure(failure.clone()), effects);
            }
            Command::Release { lock, .. } => {
                self.releases -= 1;
                effects.released(request.reply, Err(Reason::Lost));
                self.released(lock, effects);
            }
            Command::CheckWaiters { lock } => self.waiters_checked(now, lock, true, effects),
            // The wait goes on to the end of its slice.
            Command::Interrupt { session, .. } => self.interrupted(now, session, effects),
        }
    }

    /// Fails all waiters of a lock that this process does not hold.
    pub(super) fn refuse(&mut self, lock: LockId, reason: &Reason, effects: &mut Effects<W, H, R>) {
        if let Some(slot) = self.slots.remove(&lock) {
            debug_assert!(
                matches!(slot.phase, Phase::Trying | Phase::Waiting(_)),
                "nothing else is asked of the server for those who wait"
            );
            let mut queue = slot.queue;
            for waiter in queue.take_out(|_| true) {
                self.owners.stop_waiting(&waiter, lock);
                effects.answer_waiter(waiter, Answer::Failed(reason.clone()));
            }
        }
    }

    /// The holder has lost the lock.
    fn lose(&mut self, lock: LockId, effects: &mut Effects<W, H, R>) {
        let Some(slot) = self.slots.get_mut(&lock) else {
            return;
        };
        match std::mem::replace(&mut slot.phase, Phase::Releasing) {
            Phase::Held(held) => {
                effects.lost.push(held.hold);
                self.owners.stop_holding(held.owner, lock);
            }
            Phase::Shared(shared) => {
                for share in shared.holds {
                    effects.lost.push(share.hold);
                    self.owners.stop_holding(share.owner, lock);
                }
            }
            _ => {}
        }
    }
}
