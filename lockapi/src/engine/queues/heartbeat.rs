//! The deliveries of a process: keeping and losing them.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use super::topic::Topic;
use crate::engine::batcher::Batcher;
use crate::engine::clock::Time;
use crate::engine::renewal::{self, Held, Holdings, deadline, renew_at};
use crate::engine::timer::Timer;
use crate::error::{ErrorKind, Result};
use crate::hold::Hold;
use crate::queue::{FOR_EVER, Outcome, Settle, Settled, Ticket};
use crate::sync::{Mutex, MutexGuard};
use crate::telemetry::{self, Kind, Renewal};

/// What is known of a delivery.
struct Entry {
    /// The work has not begun: it is released at this time.
    unbegun: Option<Arc<Topic>>,
    /// Begun, it need not be extended before.
    renew_at: Time,
    /// It is being settled, on another connection than that of extensions: only the answer to that
    /// tells whether it is lost.
    settling: bool,
    /// Its row was locked by a transaction when it was to be completed.
    locked: bool,
    /// How long it is surely held, but for what is open.
    granted: Time,
    /// What the program has sent to extend it and has no answer yet, and until when it is held if that was done.
    open: Vec<(u64, Time)>,
    /// How often the program has sent such a request.
    sent: u64,
}

impl Entry {
    /// How long it is surely held.
    fn until(&self) -> Time {
        let open = self.open.iter().map(|(_, until)| *until);
        open.fold(self.granted, Time::min)
    }
}

/// What the process has claimed and not settled.
pub(super) struct Heartbeats {
    held: Mutex<Holdings<Ticket, Entry>>,
    batcher: Arc<Batcher>,
    timer: Timer,
    this: Weak<Self>,
}

impl Heartbeats {
    pub(super) fn new(batcher: Arc<Batcher>, timer: Timer) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            held: Mutex::default(),
            batcher,
            timer,
            this: this.clone(),
        })
    }

    /// Keeps deliveries that were requested at `sent`; returns their holds.
    pub(super) fn keep(
        &self,
        tickets: impl Iterator<Item = Ticket>,
        sent: Time,
        lease: Duration,
        renewed: bool,
        unbegun: Option<(Duration, &Arc<Topic>)>,
    ) -> Vec<Arc<Hold>> {
        let now = self.timer.now();
        let mut held = self.lock();
        let holds = tickets.map(|ticket| {
            let entry = Entry {
                unbegun: unbegun.map(|(_, topic)| Arc::clone(topic)),
                renew_at: sent,
                settling: false,
                locked: false,
                granted: deadline(sent, lease),
                open: Vec::new(),
                sent: 0,
            };
            let mut entry = Held::new(sent, lease, renewed, entry);
            entry.what.renew_at = entry.next_attempt(sent);
            let hold = Arc::clone(&entry.hold);
            held.insert(ticket, entry);
            if let Some((within, _)) = unbegun {
                held.schedule(ticket, (now + within).min(renew_at(sent, lease)));
            }
            hold
        });
        let holds = holds.collect();
        self.arm(held);
        holds
    }

    /// Work on it begins; answers whether it may.
    pub(super) fn begin(&self, ticket: Ticket) -> bool {
        let mut held = self.lock();
        let Some(entry) = held.get_mut(ticket) else {
            return false;
        };
        // The timer looks when it was to go back, and finds that it was begun.
        entry.what.unbegun = None;
        entry.hold.is_held()
    }

    /// Whether the process has it.
    pub(super) fn keeps(&self, ticket: Ticket) -> bool {
        let held = self.lock();
        held.get(ticket).is_some_and(|entry| entry.hold.is_held())
    }

    /// It is settled: nothing more is done about it.
    pub(super) fn forget(&self, ticket: Ticket) {
        if let Some(entry) = self.lock().remove(ticket) {
            entry.hold.release();
        }
    }

    /// Takes all out that are not being completed, which are lost for their holders.
    pub(super) fn take_all(&self) -> Vec<Ticket> {
        let idle = self.lock().take(|entry| !entry.settling);
        let tickets = idle.iter().map(|(ticket, _)| *ticket).collect();
        for (_, entry) in idle {
            entry.hold.lose();
            entry.hold.announce();
        }
        tickets
    }

    /// They are completed, or were not the program's any more.
    pub(super) fn forget_all(&self, tickets: &[Ticket]) {
        let mut held = self.lock();
        for ticket in tickets {
            if let Some(entry) = held.remove(*ticket) {
                entry.hold.release();
            }
        }
    }

    /// They are about to be settled, or are not, because that failed.
    pub(super) fn set_settling(&self, tickets: &[Ticket], settling: bool) {
        let mut held = self.lock();
        for ticket in tickets {
            if let Some(entry) = held.get_mut(*ticket) {
                entry.what.settling = settling;
            }
        }
    }

    /// Its row is locked by a transaction.
    pub(super) fn set_locked(&self, ticket: Ticket) {
        if let Some(entry) = self.lock().get_mut(ticket) {
            entry.what.locked = true;
        }
    }

    pub(super) fn is_locked(&self, ticket: Ticket) -> bool {
        let held = self.lock();
        held.get(ticket).is_some_and(|it| it.what.locked)
    }

    /// They are about to be settled, until what it answers is dropped: by then it is known what became of
    /// them, or nobody waits for it.
    pub(super) fn settling<'a>(&'a self, tickets: &'a [Ticket]) -> Settling<'a> {
        self.set_settling(tickets, true);
        Settling {
            heartbeats: self,
            tickets,
        }
    }

    fn is_settling(&self, ticket: Ticket) -> bool {
        let held = self.lock();
        held.get(ticket).is_some_and(|it| it.what.settling)
    }

    /// It was extended by a request that was sent at `sent`.
    fn extended(&self, ticket: Ticket, sent: Time, lease: Duration) {
        let mut held = self.lock();
        if let Some(entry) = held.get_mut(ticket) {
            entry.what.granted = deadline(sent, lease);
            let until = entry.what.until();
            held.renewed(ticket, sent, lease, until);
        }
        if let Some(entry) = held.get_mut(ticket) {
            // A shorter lease is extended sooner.
            entry.what.renew_at = entry.next_attempt(sent);
        }
        self.arm(held);
    }

    /// The program sends a request to extend it. From now on it may end as early as that says: until the answer, it is held
    /// no longer.
    pub(super) fn extending(
        self: &Arc<Self>,
        ticket: Ticket,
        sent: Time,
        lease: Duration,
    ) -> Extending {
        let mut extending = Extending {
            heartbeats: Arc::clone(self),
            ticket,
            nth: 0,
            sent,
            lease,
            due: sent,
        };
        let mut held = self.lock();
        if let Some(entry) = held.get_mut(ticket) {
            (extending.due, entry.what.sent) = (entry.due(), entry.what.sent + 1);
            extending.nth = entry.what.sent;
            let open = (extending.nth, deadline(sent, lease));
            entry.what.open.push(open);
            entry.hold.set_deadline(entry.what.until());
            held.schedule(ticket, extending.due);
        }
        self.arm(held);
        extending
    }

    fn lose(&self, ticket: Ticket) {
        let lost = self.lock().remove(ticket);
        if let Some(entry) = lost {
            entry.hold.lose();
            telemetry::lost([Kind::Job].into_iter());
            entry.hold.announce();
        }
    }

    fn arm(&self, held: MutexGuard<'_, Holdings<Ticket, Entry>>) {
        renewal::arm(held, &self.timer, &self.this, Self::renew_due);
    }

    /// Runs on the timer's thread: loses what has ended and extends what is due.
    fn renew_due(&self, armed: Time) {
        // What was not begun goes back when that is due.
        let slack = |entry: &Held<Entry>| match entry.what.unbegun {
            Some(_) => Duration::ZERO,
            None => entry.slack(),
        };
        let now = self.timer.now();
        let mut extensions = Vec::new();
        let mut lost = Vec::new();
        let mut returned = Vec::new();
        let mut held = self.lock();
        held.timer_fired(armed);
        while let Some(ticket) = held.next_due(now, slack) {
            let Some(entry) = held.get_mut(ticket) else {
                break;
            };
            if !entry.hold.is_held() {
                // The delivery does not exist any more.
                held.remove(ticket);
                continue;
            }
            let nearly = now + slack(entry);
            if let Some(topic) = entry.what.unbegun.take() {
                entry.hold.lose();
                returned.extend(held.remove(ticket).map(|entry| (ticket, topic, entry)));
                continue;
            }
            if now >= entry.deadline() {
                entry.hold.lose();
                lost.extend(held.remove(ticket));
                continue;
            }
            if !entry.what.open.is_empty() {
                // The program extends it.
                let deadline = entry.deadline();
                held.schedule(ticket, deadline);
                continue;
            }
            let renew_at = entry.what.renew_at;
            if nearly < renew_at {
                held.schedule(ticket, renew_at);
                continue;
            }
            extensions.push((ticket, entry.ttl));
            // Nothing more to do than to lose it, unless the extension is answered.
            let deadline = entry.deadline();
            held.schedule(ticket, deadline);
        }
        self.arm(held);
        telemetry::lost(lost.iter().map(|_| Kind::Job));
        for entry in lost {
            entry.hold.announce();
        }
        for (ticket, topic, entry) in returned {
            entry.hold.announce();
            if let Some(release) = Settle::new(ticket, &Outcome::Release, FOR_EVER) {
                // Where that fails the lease, which is not extended, ends by itself.
                self.batcher.submit(release, move |_| {
                    topic.returned();
                    topic.room_left();
                });
            }
        }
        for (ticket, lease) in extensions {
            let this = self.this.clone();
            if let Some(extend) = Settle::new(ticket, &Outcome::Extend(lease), FOR_EVER) {
                self.batcher.submit(extend, move |outcome| {
                    if let Some(heartbeats) = this.upgrade() {
                        heartbeats.answered(ticket, now, lease, &outcome);
                    }
                });
            }
        }
    }

    fn answered(&self, ticket: Ticket, sent: Time, lease: Duration, outcome: &Result<Settled>) {
        let renewal = match outcome {
            Ok(Settled::Done) => Renewal::Done,
            Ok(Settled::Lost | Settled::Dead) => Renewal::Lost,
            Ok(Settled::Locked) | Err(_) => Renewal::Failed,
        };
        telemetry::renewed(Kind::Job, &ticket.id, renewal);
        match outcome {
            Ok(Settled::Done) => self.extended(ticket, sent, lease),
            Ok(Settled::Lost | Settled::Dead) if !self.is_settling(ticket) => self.lose(ticket),
            // Unknown is not lost, and neither is a row that the worker's own transaction has
            // locked, or that it is about to settle: it is kept until the deadline, and asked for
            // again before.
            Ok(_) | Err(_) => {
                let now = self.timer.now();
                let mut held = self.lock();
                if let Some(again) = held.get(ticket).map(|entry| entry.repeat_at(now)) {
                    held.schedule(ticket, again);
                }
                self.arm(held);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Holdings<Ticket, Entry>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request of the program to extend a delivery, which is under way.
pub(super) struct Extending {
    heartbeats: Arc<Heartbeats>,
    ticket: Ticket,
    nth: u64,
    sent: Time,
    lease: Duration,
    /// When something was to be done about the delivery before.
    due: Time,
}

impl Extending {
    /// Notes what became of it.
    pub(super) fn answered(self, outcome: &Result<Settled>) {
        let Self { ticket, nth, .. } = self;
        let heartbeats = self.heartbeats;
        let mut held = heartbeats.lock();
        let Some(entry) = held.get_mut(ticket) else {
            return;
        };
        entry.what.open.retain(|(open, _)| *open != nth);
        let mut due = self.due;
        match outcome {
            Ok(Settled::Done) => {
                drop(held);
                return heartbeats.extended(ticket, self.sent, self.lease);
            }
            // Only the answer to what settles it tells whether it is lost.
            Ok(Settled::Lost | Settled::Dead) if !entry.what.settling => {
                drop(held);
                return heartbeats.lose(ticket);
            }
            Err(error) if matches!(error.kind(), ErrorKind::Indeterminate | ErrorKind::Corrupt) => {
                // It may have been done: it is extended again at once.
                let until = deadline(self.sent, self.lease);
                entry.what.granted = entry.what.granted.min(until);
                due = heartbeats.timer.now();
                entry.what.renew_at = entry.what.renew_at.min(due);
            }
            // Nothing was done.
            Ok(_) | Err(_) => {}
        }
        entry.hold.set_deadline(entry.what.until());
        let by_hand = !entry.renewed;
        let due = if by_hand { entry.deadline() } else { due };
        held.schedule(ticket, due);
        heartbeats.arm(held);
    }
}

/// Deliveries that are about to be settled.
pub(super) struct Settling<'a> {
    heartbeats: &'a Heartbeats,
    tickets: &'a [Ticket],
}

impl Drop for Settling<'_> {
    fn drop(&mut self) {
        self.heartbeats.set_settling(self.tickets, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Mode;
    use crate::engine::clock::Clock;
    use crate::engine::connection::Connections;
    use crate::engine::driver::Driver;
    use crate::error::Error;
    use crate::memory::Database;

    const HELD: Duration = Duration::from_mins(1);
    const SHORT: Duration = Duration::from_secs(1);
    const LONG: Duration = Duration::from_hours(1);

    fn heartbeats() -> Arc<Heartbeats> {
        let timer = Timer::start(&Clock::real()).unwrap();
        let driver = Driver::new(Database::new());
        let connections = Connections::new(driver, timer.clone(), Mode::Direct, SHORT);
        Heartbeats::new(Batcher::new(Arc::new(connections)), timer)
    }

    const TICKET: Ticket = Ticket { id: 1, token: 1 };

    fn unknown() -> Result<Settled> {
        Err(Error::new(
            ErrorKind::Indeterminate,
            "extend",
            "the connection is lost",
        ))
    }

    fn not_done() -> Result<Settled> {
        Err(Error::new(
            ErrorKind::Unavailable,
            "extend",
            "there is no connection",
        ))
    }

    #[test]
    fn what_may_have_been_shortened_is_held_for_the_shorter_time() {
        for (lease, outcome, expected) in [
            (SHORT, unknown(), SHORT),
            (LONG, unknown(), HELD),
            (SHORT, not_done(), HELD),
            (SHORT, Ok(Settled::Locked), HELD),
            (SHORT, Ok(Settled::Done), SHORT),
            (LONG, Ok(Settled::Done), LONG),
        ] {
            let heartbeats = heartbeats();
            let sent = heartbeats.timer.now();
            let tickets = [TICKET].into_iter();
            let hold = heartbeats.keep(tickets, sent, HELD, false, None).remove(0);
            let is_until = |lease| hold.deadline().as_micros() == deadline(sent, lease).as_micros();
            let extending = heartbeats.extending(TICKET, sent, lease);
            assert!(is_until(HELD.min(lease)), "{lease:?} until the answer");
            // What is answered meanwhile was done before.
            heartbeats.extended(TICKET, sent, HELD);
            assert!(is_until(HELD.min(lease)), "{lease:?} until the answer");
            extending.answered(&outcome);
            assert!(is_until(expected), "{lease:?} {outcome:?}");
        }
    }

    #[test]
    fn what_was_shortened_is_extended_sooner() {
        for lease in [SHORT, LONG] {
            let heartbeats = heartbeats();
            let sent = heartbeats.timer.now();
            let tickets = [TICKET].into_iter();
            let hold = heartbeats.keep(tickets, sent, HELD, true, None).remove(0);
            let extending = heartbeats.extending(TICKET, sent, lease);
            extending.answered(&Ok(Settled::Done));
            let held = heartbeats.lock();
            let entry = held.get(TICKET).unwrap();
            assert_eq!(entry.what.renew_at, renew_at(sent, lease));
            assert!(!hold.is_lost());
        }
    }

    #[test]
    fn what_was_not_done_leaves_it_as_it_was() {
        for order in [[0, 1], [1, 0]] {
            let heartbeats = heartbeats();
            let sent = heartbeats.timer.now();
            let tickets = [TICKET].into_iter();
            let hold = heartbeats.keep(tickets, sent, HELD, false, None).remove(0);
            let mut both =
                [SHORT, SHORT * 2].map(|lease| Some(heartbeats.extending(TICKET, sent, lease)));
            for nth in order {
                both[nth].take().unwrap().answered(&not_done());
            }
            assert_eq!(
                hold.deadline().as_micros(),
                deadline(sent, HELD).as_micros(),
                "{order:?}"
            );
        }
    }
}
