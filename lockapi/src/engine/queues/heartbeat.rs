//! The deliveries of a process: keeping and losing them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::topic::Topic;
use crate::engine::batcher::Batcher;
use crate::engine::clock::Time;
use crate::engine::timer::Timer;
use crate::error::Result;
use crate::hold::Hold;
use crate::queue::{FOR_EVER, Outcome, Settle, Settled, Ticket};
use crate::telemetry::{self, Kind, Renewal};

/// A lease is extended when this part of it has passed …
const EXTEND_PART: u32 = 3;
/// … together with those that are due within this part, and a failed extension is tried again after
/// it.
const SLACK_PART: u32 = 12;
/// This part is given up for the difference in speed of two clocks.
const DRIFT_PART: u32 = 50;

/// How long a delivery is surely kept, counted from before the request was sent.
pub(super) fn deadline(sent: Time, lease: Duration) -> Time {
    sent + lease.saturating_sub(lease / DRIFT_PART)
}

struct Entry {
    lease: Duration,
    deadline: Time,
    /// When the timer looks at it next.
    due: Time,
    renewed: bool,
    /// Nobody works on it yet: it goes back when it is due.
    unbegun: Option<Arc<Topic>>,
    /// Begun, it need not be extended before.
    renew_at: Time,
    /// It is being settled, on another connection than that of extensions: only the answer to that
    /// tells whether it is lost.
    settling: bool,
    /// Somebody had locked its row when it was to be completed.
    locked: bool,
    hold: Arc<Hold>,
}

#[derive(Default)]
struct State {
    entries: FxHashMap<Ticket, Entry>,
    due: BTreeSet<(Time, i64, i64)>,
    armed: Option<Time>,
}

impl State {
    fn place(ticket: Ticket, at: Time) -> (Time, i64, i64) {
        (at, ticket.id, ticket.token)
    }

    fn schedule(&mut self, ticket: Ticket, at: Time) {
        if let Some(entry) = self.entries.get_mut(&ticket) {
            self.due.remove(&Self::place(ticket, entry.due));
            entry.due = at.min(entry.deadline);
            self.due.insert(Self::place(ticket, entry.due));
        }
    }

    fn remove(&mut self, ticket: Ticket) -> Option<Entry> {
        let entry = self.entries.remove(&ticket)?;
        self.due.remove(&Self::place(ticket, entry.due));
        Some(entry)
    }
}

/// What the process has claimed and not settled.
pub(super) struct Heartbeats {
    state: Mutex<State>,
    batcher: Arc<Batcher>,
    timer: Timer,
    this: Weak<Self>,
}

impl Heartbeats {
    pub(super) fn new(batcher: Arc<Batcher>, timer: Timer) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            state: Mutex::default(),
            batcher,
            timer,
            this: this.clone(),
        })
    }

    /// Keeps deliveries that were asked for at `sent`; answers what tells of their loss.
    pub(super) fn keep(
        &self,
        tickets: impl Iterator<Item = Ticket>,
        sent: Time,
        lease: Duration,
        renewed: bool,
        unbegun: Option<(Duration, &Arc<Topic>)>,
    ) -> Vec<Arc<Hold>> {
        let deadline = deadline(sent, lease);
        let renew_at = if renewed {
            sent + lease / EXTEND_PART
        } else {
            deadline
        };
        let due = unbegun.map_or(renew_at, |(within, _)| {
            (self.timer.now() + within).min(sent + lease / EXTEND_PART)
        });
        let mut state = self.lock();
        let holds = tickets.map(|ticket| {
            let hold = Arc::<Hold>::default();
            hold.set_deadline(deadline);
            state.due.insert(State::place(ticket, due));
            let entry = Entry {
                lease,
                deadline,
                due,
                renewed,
                unbegun: unbegun.map(|(_, topic)| Arc::clone(topic)),
                renew_at,
                settling: false,
                locked: false,
                hold: Arc::clone(&hold),
            };
            state.entries.insert(ticket, entry);
            hold
        });
        let holds = holds.collect();
        self.arm(state);
        holds
    }

    /// Work on it begins; answers whether it may.
    pub(super) fn begin(&self, ticket: Ticket) -> bool {
        let mut state = self.lock();
        let Some(entry) = state.entries.get_mut(&ticket) else {
            return false;
        };
        // The timer looks when it was to go back, and finds that it was begun.
        entry.unbegun = None;
        entry.hold.is_held()
    }

    /// It is settled: nothing more is done about it.
    pub(super) fn forget(&self, ticket: Ticket) {
        if let Some(entry) = self.lock().remove(ticket) {
            entry.hold.release();
        }
    }

    /// Takes all out that are not being settled, which are lost for whoever has them.
    pub(super) fn take_all(&self) -> Vec<Ticket> {
        let mut state = self.lock();
        let entries = state.entries.iter();
        let idle = entries.filter(|(_, entry)| !entry.settling);
        let tickets: Vec<_> = idle.map(|(ticket, _)| *ticket).collect();
        let entries: Vec<_> = tickets.iter().filter_map(|it| state.remove(*it)).collect();
        drop(state);
        for entry in entries {
            entry.hold.lose();
            entry.hold.announce();
        }
        tickets
    }

    /// They are completed, or were not the program's any more.
    pub(super) fn forget_all(&self, tickets: &[Ticket]) {
        let mut state = self.lock();
        for ticket in tickets {
            if let Some(entry) = state.remove(*ticket) {
                entry.hold.release();
            }
        }
    }

    /// They are about to be settled, or are not, because that failed.
    pub(super) fn set_settling(&self, tickets: &[Ticket], settling: bool) {
        let mut state = self.lock();
        for ticket in tickets {
            if let Some(entry) = state.entries.get_mut(ticket) {
                entry.settling = settling;
            }
        }
    }

    /// Somebody has locked its row.
    pub(super) fn set_locked(&self, ticket: Ticket) {
        if let Some(entry) = self.lock().entries.get_mut(&ticket) {
            entry.locked = true;
        }
    }

    pub(super) fn is_locked(&self, ticket: Ticket) -> bool {
        let state = self.lock();
        state.entries.get(&ticket).is_some_and(|it| it.locked)
    }

    /// They are about to be settled, until what it answers is dropped: by then it is known what became of
    /// them, or nobody waits for it.
    pub(super) fn settling<'a>(&'a self, tickets: &'a [Ticket]) -> Settling<'a> {
        self.set_settling(tickets, true);
        Settling {
            kept: self,
            tickets,
        }
    }

    fn is_settling(&self, ticket: Ticket) -> bool {
        let state = self.lock();
        state.entries.get(&ticket).is_some_and(|it| it.settling)
    }

    /// It was extended by a request that was sent at `sent`.
    pub(super) fn extended(&self, ticket: Ticket, sent: Time, lease: Duration) {
        let mut state = self.lock();
        if let Some(entry) = state.entries.get_mut(&ticket) {
            entry.deadline = deadline(sent, lease);
            entry.hold.set_deadline(entry.deadline);
            entry.lease = lease;
            let next = if entry.renewed {
                sent + lease / EXTEND_PART
            } else {
                entry.deadline
            };
            state.schedule(ticket, next);
        }
        self.arm(state);
    }

    pub(super) fn lose(&self, ticket: Ticket) {
        let lost = self.lock().remove(ticket);
        if let Some(entry) = lost {
            entry.hold.lose();
            telemetry::lost([Kind::Job].into_iter());
            entry.hold.announce();
        }
    }

    /// Sees to it that the timer looks when the first entry is due.
    fn arm(&self, mut state: MutexGuard<'_, State>) {
        let Some((first, ..)) = state.due.first().copied() else {
            return;
        };
        if state.armed.is_some_and(|armed| armed <= first) {
            return;
        }
        state.armed = Some(first);
        drop(state);
        let this = self.this.clone();
        self.timer.run_at(first, move || {
            if let Some(kept) = this.upgrade() {
                kept.look(first);
            }
        });
    }

    /// Runs on the timer's thread: loses what has ended and extends what is due.
    fn look(&self, armed: Time) {
        let now = self.timer.now();
        let mut extensions = Vec::new();
        let mut lost = Vec::new();
        let mut returned = Vec::new();
        let mut state = self.lock();
        if state.armed == Some(armed) {
            state.armed = None;
        }
        while let Some((due, id, token)) = state.due.first().copied() {
            let ticket = Ticket { id, token };
            let Some(entry) = state.entries.get_mut(&ticket) else {
                state.due.pop_first();
                continue;
            };
            let slack = if entry.renewed && entry.unbegun.is_none() && entry.deadline > due {
                entry.lease / SLACK_PART
            } else {
                Duration::ZERO
            };
            if due > now + slack {
                break;
            }
            if !entry.hold.is_held() {
                // Nobody has the delivery any more.
                state.remove(ticket);
                continue;
            }
            if let Some(topic) = entry.unbegun.take() {
                entry.hold.lose();
                returned.extend(state.remove(ticket).map(|entry| (ticket, topic, entry)));
                continue;
            }
            if now >= entry.deadline {
                entry.hold.lose();
                lost.extend(state.remove(ticket));
                continue;
            }
            let renew_at = entry.renew_at;
            if now + slack < renew_at {
                state.schedule(ticket, renew_at);
                continue;
            }
            extensions.push((ticket, entry.lease));
            // Nothing more to do than to lose it, unless the extension is answered.
            let deadline = entry.deadline;
            state.schedule(ticket, deadline);
        }
        self.arm(state);
        telemetry::lost(lost.iter().map(|_| Kind::Job));
        for entry in lost {
            entry.hold.announce();
        }
        for (ticket, topic, entry) in returned {
            entry.hold.announce();
            if let Some(release) = Settle::new(ticket, &Outcome::Release, FOR_EVER) {
                // Where that fails the lease, which is not extended, ends by itself.
                self.batcher.submit(release, move |_| topic.returned());
            }
        }
        for (ticket, lease) in extensions {
            let this = self.this.clone();
            if let Some(extend) = Settle::new(ticket, &Outcome::Extend(lease), FOR_EVER) {
                self.batcher.submit(extend, move |outcome| {
                    if let Some(kept) = this.upgrade() {
                        kept.answered(ticket, now, lease, &outcome);
                    }
                });
            }
        }
    }

    fn answered(&self, ticket: Ticket, sent: Time, lease: Duration, outcome: &Result<Settled>) {
        let told = match outcome {
            Ok(Settled::Done) => Renewal::Done,
            Ok(Settled::Lost | Settled::Dead) => Renewal::Lost,
            Ok(Settled::Locked) | Err(_) => Renewal::Failed,
        };
        telemetry::renewed(Kind::Job, &ticket.id, told);
        match outcome {
            Ok(Settled::Done) => self.extended(ticket, sent, lease),
            Ok(Settled::Lost | Settled::Dead) if !self.is_settling(ticket) => self.lose(ticket),
            // Unknown is not lost, and neither is a row that the worker's own transaction has
            // locked, or that it is about to settle: it is kept until the deadline, and asked for
            // again before.
            Ok(_) | Err(_) => {
                let again = self.timer.now() + lease / SLACK_PART;
                let mut state = self.lock();
                state.schedule(ticket, again);
                self.arm(state);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Deliveries that are about to be settled.
pub(super) struct Settling<'a> {
    kept: &'a Heartbeats,
    tickets: &'a [Ticket],
}

impl Drop for Settling<'_> {
    fn drop(&mut self) {
        self.kept.set_settling(self.tickets, false);
    }
}
