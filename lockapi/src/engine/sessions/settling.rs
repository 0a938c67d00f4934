//! What follows from the answers of the server.

use std::sync::Arc;
use std::time::Duration;

use super::state::{Held, News, Phase, Slot, State};
use super::{Grant, Patience, Request, Sessions, lost};
use crate::engine::clock::Time;
use crate::hold::Hold;
use crate::key::LockId;
use crate::mutex::Stepped;

/// The bounds of the pause between polls when no session is free to wait.
const POLL_MILLIS: std::ops::Range<u64> = 20..120;

impl Sessions {
    /// Settles the answers to requests of a session.
    pub(crate) fn settle(&self, session: usize, requests: Vec<Request>, answers: &[Stepped]) {
        let mut news = News::default();
        let now = self.keeper.now();
        let mut state = self.lock();
        for (request, answer) in requests.into_iter().zip(answers) {
            match request {
                Request::Release { lock, reply } => {
                    let released = match answer {
                        Stepped::Released => Ok(()),
                        _ => Err(lost()),
                    };
                    news.releases.extend(reply.map(|reply| (reply, released)));
                    Self::released(&mut state, lock);
                }
                Request::Try { lock, .. } => match answer {
                    Stepped::Taken(fence) => {
                        self.taken(&mut state, session, lock, *fence, now, &mut news);
                    }
                    _ => self.contended(&mut state, lock, &mut news),
                },
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
        fence: i64,
        now: Time,
        news: &mut News,
    ) {
        let Some(slot) = state.slots.get_mut(&lock) else {
            return;
        };
        slot.prune();
        let Some(first) = slot.queue.pop_front() else {
            slot.phase = Phase::Releasing;
            Self::request(state, session, Request::Release { lock, reply: None });
            return;
        };
        let hold: Arc<Hold> = Arc::default();
        let grant = Grant {
            sessions: self.this.upgrade(),
            lock,
            hold: Arc::clone(&hold),
            fence,
            mark: state.sessions[session].mark,
        };
        slot.phase = Phase::Held(Held {
            session,
            hold,
            fence,
            hand_overs: 0,
            since: now,
        });
        state.sessions[session].held += 1;
        news.grants.push((first.reply, Ok(Some(grant))));
        refuse_impatient(slot, news);
    }

    /// Another process holds the lock: finds a way to wait for it.
    fn contended(&self, state: &mut State, lock: LockId, news: &mut News) {
        let Some(slot) = state.slots.get_mut(&lock) else {
            return;
        };
        refuse_impatient(slot, news);
        slot.prune();
        if slot.queue.is_empty() {
            state.slots.remove(&lock);
            return;
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
            slot.phase = Phase::Trying;
            Self::request(&mut state, 0, Request::Try { lock, again: false });
        }
    }

    pub(super) fn released(state: &mut State, lock: LockId) {
        let Some(slot) = state.slots.get_mut(&lock) else {
            return;
        };
        if matches!(slot.phase, Phase::Releasing) {
            slot.prune();
            if slot.queue.is_empty() {
                state.slots.remove(&lock);
            } else {
                slot.phase = Phase::Trying;
                Self::request(state, 0, Request::Try { lock, again: false });
            }
        }
    }
}

/// Those who do not wait are told `None` once somebody has the lock.
fn refuse_impatient(slot: &mut Slot, news: &mut News) {
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
