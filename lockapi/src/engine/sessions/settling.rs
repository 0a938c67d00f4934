//! What follows from the answers of the server.

use std::sync::Arc;
use std::time::Duration;

use super::state::{Answer, Held, News, Phase, Slot, State};
use super::{Grant, Patience, Request, Sessions, lost};
use crate::engine::clock::Time;
use crate::hold::Hold;
use crate::key::LockId;
use crate::mutex::{Stepped, Way};
use crate::telemetry::{self, Kind};

/// The bounds of the pause between polls when no session is free to wait.
const POLL_MILLIS: std::ops::Range<u64> = 20..120;

impl Sessions {
    /// Settles the answers to requests of a session.
    pub(crate) fn settle(&self, session: usize, requests: Vec<Request>, answers: &[Answer]) {
        let mut news = News::default();
        let now = self.keeper.now();
        let mut state = self.lock();
        for (request, answer) in requests.into_iter().zip(answers) {
            match request {
                Request::Release { lock, reply, .. } => {
                    let released = match answer {
                        Answer::Step(Stepped::Released) => Ok(()),
                        _ => Err(lost()),
                    };
                    news.releases.extend(reply.map(|reply| (reply, released)));
                    Self::released(&mut state, lock);
                }
                Request::Try { lock, .. } => match answer {
                    Answer::Step(step @ (Stepped::Taken(_) | Stepped::Shared)) => {
                        self.taken(&mut state, session, lock, *step, now, &mut news);
                    }
                    _ => self.contended(&mut state, lock, &mut news),
                },
                Request::Look { lock } => {
                    let awaited = *answer != Answer::Awaited(false);
                    self.looked(&mut state, lock, awaited, &mut news);
                }
            }
        }
        drop(state);
        news.tell();
    }

    /// Gives a lock that a session has taken to the first who still waits for it.
    pub(super) fn taken(
        &self,
        state: &mut State,
        session: usize,
        lock: LockId,
        taken: Stepped,
        now: Time,
        news: &mut News,
    ) {
        let Some(slot) = state.slots.get_mut(&lock) else {
            return;
        };
        let fence = match (taken, slot.wanted()) {
            (Stepped::Taken(fence), Some(Way::Alone)) => fence,
            (Stepped::Shared, Some(Way::Shared)) => return self.share(state, session, lock, news),
            _ => {
                // Nobody waits any more, or they want it otherwise.
                slot.phase = Phase::Releasing;
                let way = match taken {
                    Stepped::Shared => Way::Shared,
                    _ => Way::Alone,
                };
                let reply = None;
                return Self::request(state, session, Request::Release { lock, way, reply });
            }
        };
        let Some(first) = slot.queue.pop_front() else {
            return;
        };
        let hold: Arc<Hold> = Arc::default();
        let grant = Grant {
            sessions: self.this.upgrade(),
            lock,
            hold: Arc::clone(&hold),
            fence,
            mark: state.sessions[session].mark,
            waited: first.waited(now),
        };
        slot.phase = Phase::Held(Held {
            session,
            hold,
            line: first.line,
            fence,
            hand_overs: 0,
            since: now,
        });
        state.lines.holds(first.line, lock);
        state.sessions[session].held += 1;
        news.grants.push((first.reply, Ok(Some(grant))));
        refuse_impatient(slot, news);
    }

    /// Another process holds the lock: finds a way to wait for it.
    fn contended(&self, state: &mut State, lock: LockId, news: &mut News) {
        telemetry::contended(Kind::Mutex);
        let Some(slot) = state.slots.get_mut(&lock) else {
            return;
        };
        refuse_impatient(slot, news);
        slot.prune();
        if slot.queue.is_empty() {
            state.slots.remove(&lock);
            return;
        }
        let now = self.keeper.now();
        for waiter in &mut slot.queue {
            waiter.since.get_or_insert(now);
        }
        if state.busy + state.wanted.len() < state.sessions.len() - 1 {
            slot.phase = Phase::Waiting;
            state.wanted.push_back(lock);
            Self::rouse_waiter(state);
        } else {
            // A pause that is cut short by a caller ends there: its timer must not make a poll of
            // its own later.
            state.pauses += 1;
            let number = state.pauses;
            slot.phase = Phase::Polling(number);
            let this = self.this.clone();
            let pause = Duration::from_millis(fastrand::u64(POLL_MILLIS));
            self.keeper.run_at(self.keeper.now() + pause, move || {
                if let Some(sessions) = this.upgrade() {
                    sessions.poll(lock, number);
                }
            });
        }
    }

    fn rouse_waiter(state: &mut State) {
        for session in 1..state.sessions.len() {
            if !state.sessions[session].running {
                Self::rouse(state, session);
                return;
            }
        }
        // All are running; one of them is idle and takes it.
        for session in 1..state.sessions.len() {
            state.waking |= 1 << session;
        }
    }

    fn poll(&self, lock: LockId, number: u64) {
        let mut state = self.lock();
        if let Some(slot) = state.slots.get_mut(&lock)
            && matches!(slot.phase, Phase::Polling(current) if current == number)
        {
            Self::try_for_first(&mut state, lock);
        }
    }

    pub(super) fn released(state: &mut State, lock: LockId) {
        let Some(slot) = state.slots.get_mut(&lock) else {
            return;
        };
        if matches!(slot.phase, Phase::Releasing) {
            if slot.wanted().is_none() {
                state.slots.remove(&lock);
            } else {
                Self::try_for_first(state, lock);
            }
        }
    }
}

/// Those who do not wait are told `None` once somebody has the lock.
pub(super) fn refuse_impatient(slot: &mut Slot, news: &mut News) {
    if slot
        .queue
        .iter()
        .all(|waiter| waiter.patience != Patience::None)
    {
        return;
    }
    for waiter in std::mem::take(&mut slot.queue) {
        if waiter.patience == Patience::None {
            news.grants.push((waiter.reply, Ok(None)));
        } else {
            slot.queue.push_back(waiter);
        }
    }
}
