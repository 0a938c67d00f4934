//! Interrupting the wait of a session: for a release, or because the lock has no waiters any more.

use std::time::Duration;

use super::effects::Effects;
use super::session::Command;
use super::slot::Slot;
use super::wait::Stage;
use super::{LockTable, Now};
use crate::engine::clock::Time;
use crate::key::LockId;

/// A wait that ends by itself within this time is not interrupted.
const NEARLY: Duration = Duration::from_millis(20);
/// When an interrupt that found no wait is repeated.
const AGAIN: Duration = Duration::from_millis(5);

impl<W, H: Clone + Default, R> LockTable<W, H, R> {
    /// A caller left whose lock this session waits for, or is about to.
    pub(super) fn waiter_left(
        &mut self,
        now: Now<'_>,
        session: usize,
        effects: &mut Effects<W, H, R>,
    ) {
        let Some(wait) = &self.sessions[session].wait else {
            return;
        };
        // Whoever waits at the server keeps others out there.
        let wanted = self.slots.get(&wait.lock).and_then(Slot::wanted);
        if wanted != Some(wait.mode) && wait.until > now() + NEARLY {
            self.interrupt(session, effects);
        }
    }

    /// Interrupts the waits of which the server knows that they are for holders of locks, and which are so no more:
    /// others would be told of cycles that there are not.
    pub(super) fn interrupt_outdated(&mut self, now: Now<'_>, effects: &mut Effects<W, H, R>) {
        let given_up = self.owners.take_given_up();
        if given_up.is_empty() {
            return;
        }
        for session in 1..self.sessions.len() {
            let Some(wait) = &self.sessions[session].wait else {
                continue;
            };
            // One look at all who wait is enough: the next one begins with what is true then.
            let goes_on = wait.stage == Stage::Begun && !wait.interrupted;
            let knows = |lock: &LockId| wait.holding.binary_search(lock).is_ok();
            if !goes_on || !given_up.iter().any(knows) || wait.until <= now() + NEARLY {
                continue;
            }
            let slot = self.slots.get(&wait.lock).into_iter();
            // What many share one of them still has, most of the time.
            let has = |lock: &LockId| {
                let mut owners = slot.clone().flat_map(|slot| slot.queue.owners());
                owners.any(|owner| self.owners.holds(owner).contains(lock))
            };
            if given_up.iter().filter(|lock| knows(lock)).all(has) {
                continue;
            }
            let held = self.held_behind(now(), slot.flat_map(|slot| slot.queue.owners()));
            let is_behind = |lock: &LockId| held.binary_search(lock).is_ok();
            if !wait.holding.iter().all(is_behind) {
                self.interrupt(session, effects);
            }
        }
    }

    /// Ends the wait of a session, if it waits at the server.
    pub(super) fn interrupt(&mut self, session: usize, effects: &mut Effects<W, H, R>) {
        let state = &mut self.sessions[session];
        let Some(wait) = state
            .wait
            .as_mut()
            .filter(|wait| wait.stage == Stage::Begun)
        else {
            return;
        };
        wait.interrupted = true;
        state.interrupt_at = None;
        if state.mark == 0 {
            // It is not open, and looks before it sends the wait.
            return;
        }
        if std::mem::replace(&mut state.interrupting, true) {
            return;
        }
        let interrupt = Command::Interrupt {
            session,
            mark: state.mark,
            process: state.process,
        };
        self.command(0, interrupt, None, effects);
    }

    /// No interrupt can hit what the session sends from now on. One that came before the wait did, so
    /// that the session ignored it, is repeated.
    pub(super) fn interrupted(
        &mut self,
        now: Now<'_>,
        session: usize,
        effects: &mut Effects<W, H, R>,
    ) {
        let state = &mut self.sessions[session];
        state.interrupting = false;
        if let Some(wait) = &state.wait
            && wait.stage == Stage::Begun
            && wait.interrupted
        {
            let at = now() + AGAIN;
            state.interrupt_at = Some(at);
            self.arm(at, effects);
        }
        self.wake_session(session, effects);
    }

    pub(super) fn interrupt_if_due(
        &mut self,
        session: usize,
        now: Time,
        effects: &mut Effects<W, H, R>,
    ) {
        let due = self.sessions[session].interrupt_at.take_if(|at| *at <= now);
        if due.is_some() {
            self.interrupt(session, effects);
        }
    }
}
