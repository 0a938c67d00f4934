//! The leases of a process: keeping, losing and releasing them.

mod claim;
mod line;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

pub(crate) use claim::Claim;
use line::Lines;

use super::clock::Time;
use super::keeper::Keeper;
use super::lane::Lane;
use super::piles::Queued;
use crate::election::topic;
use crate::error::{Error, ErrorKind, Result};
use crate::hold::Hold;
use crate::lease::{Acquire, Acquired, Peek, Release, Renew, Sweep, Take, Taken, Terms, slot};
use crate::seam::Connector;
use crate::telemetry::{self, Kind, Renewal};

/// A lease is renewed when this part of its time to live has passed …
const RENEW_PART: u32 = 3;
/// … together with those that are due within this part, and a failed renewal is repeated after it.
const SLACK_PART: u32 = 12;
/// This part is given up for the difference in speed of two clocks.
const DRIFT_PART: u32 = 50;
/// Rows of leases that ended long ago are deleted this often.
const SWEEP_EVERY: Duration = Duration::from_mins(10);
const SWEEP_ROWS: i64 = 1000;
/// The pause after a sweep that left rows behind.
const SWEEP_AGAIN: Duration = Duration::from_secs(1);
const RELEASE_AGAIN: Duration = Duration::from_millis(250);

impl Queued for Release {
    const TURN: u8 = 0;
    const NAME: &'static str = "release";

    fn weight(&self) -> usize {
        self.slots.len()
    }
}

impl Queued for Renew {
    const TURN: u8 = 1;
    const NAME: &'static str = "renew";

    fn weight(&self) -> usize {
        self.slots.len()
    }
}

impl Queued for Acquire {
    const TURN: u8 = 2;
    const NAME: &'static str = "acquire";
}

impl Queued for Take {
    const TURN: u8 = 2;
    const NAME: &'static str = "take";

    fn weight(&self) -> usize {
        usize::try_from(self.count).unwrap_or(usize::MAX)
    }
}

impl Queued for Peek {
    const TURN: u8 = 3;
    const NAME: &'static str = "peek";
}

impl Queued for Sweep {
    const TURN: u8 = 4;
    const NAME: &'static str = "sweep";
}

/// How long a lease is surely held, counted from before the request was sent.
fn deadline(sent: Time, ttl: Duration) -> Time {
    sent + ttl.saturating_sub(ttl / DRIFT_PART)
}

/// When a lease that was granted or renewed has to be looked at.
fn first_look(sent: Time, ttl: Duration, renewed: bool) -> Time {
    if renewed {
        sent + ttl / RENEW_PART
    } else {
        deadline(sent, ttl)
    }
}

struct Entry {
    namespace: Arc<str>,
    key: Arc<str>,
    slots: Arc<[i64]>,
    fence: i64,
    ttl: Duration,
    deadline: Time,
    /// When the keeper looks at it next.
    due: Time,
    renewed: bool,
    hold: Arc<Hold>,
}

impl Entry {
    fn renew(&self) -> Renew {
        Renew {
            namespace: self.namespace.to_string(),
            key: self.key.to_string(),
            slots: Arc::clone(&self.slots),
            fence: self.fence,
            ttl: crate::lease::micros(self.ttl),
        }
    }
}

/// What is asked for.
pub(crate) struct Asked {
    pub(crate) namespace: Arc<str>,
    pub(crate) key: Arc<str>,
    pub(crate) what: What,
    pub(crate) terms: Arc<Terms>,
}

/// Which slots of a key are asked for.
#[derive(Clone, Copy)]
pub(crate) enum What {
    /// This one.
    Slot(i64),
    /// So many of those from 1 to `permits`.
    Permits { permits: i64, count: i64 },
}

/// Why a request was not granted.
pub(crate) struct Refused {
    /// It can be granted at once.
    pub(crate) again: bool,
    /// Others hold it, for at most this time unless they renew.
    pub(crate) held_for: Duration,
}

#[derive(Default)]
struct State {
    entries: HashMap<u64, Entry>,
    due: BTreeSet<(Time, u64)>,
    next: u64,
    armed: Option<Time>,
    sweeping: bool,
}

impl State {
    fn schedule(&mut self, id: u64, at: Time) {
        if let Some(entry) = self.entries.get_mut(&id) {
            self.due.remove(&(entry.due, id));
            entry.due = at.min(entry.deadline);
            self.due.insert((entry.due, id));
        }
    }

    fn remove(&mut self, id: u64) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        self.due.remove(&(entry.due, id));
        Some(entry)
    }
}

/// The leases of a process on one database.
pub(crate) struct Leases<C: Connector> {
    state: Mutex<State>,
    pub(crate) lane: Arc<Lane<C>>,
    pub(crate) keeper: Keeper,
    /// Wakes local waiters when a lease of their bucket was released here.
    released: [Notify; 16],
    pub(crate) lines: Lines,
    this: Weak<Leases<C>>,
}

impl<C: Connector> Leases<C> {
    pub(crate) fn new(lane: Arc<Lane<C>>, keeper: Keeper) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            state: Mutex::default(),
            lane,
            keeper,
            released: Default::default(),
            lines: Lines::default(),
            this: this.clone(),
        })
    }

    /// Asks once. `answered` is called on the lane, with a claim that releases when dropped.
    pub(crate) fn ask(
        self: &Arc<Self>,
        asked: Asked,
        answered: impl FnOnce(Result<std::result::Result<Claim<C>, Refused>>) + Send + 'static,
    ) {
        let sent = self.keeper.now();
        let leases = Arc::clone(self);
        let (namespace, key) = (&*asked.namespace, &*asked.key);
        let refused = |again, held_for: i64| Refused {
            again,
            held_for: Duration::from_micros(held_for.max(0).unsigned_abs()),
        };
        match asked.what {
            What::Slot(slot) => {
                let acquire = asked.terms.acquire(namespace, key, slot);
                self.lane.submit(acquire, move |outcome| {
                    answered(outcome.map(|acquired| match acquired {
                        Acquired::Granted(fence) => {
                            Ok(leases.granted(asked, Arc::new([slot]), fence, sent))
                        }
                        Acquired::Held(left) => Err(refused(false, left)),
                    }));
                });
            }
            What::Permits { permits, count } => {
                let take = asked.terms.take(namespace, key, permits, count);
                self.lane.submit(take, move |outcome| {
                    answered(outcome.map(|taken| match taken {
                        Taken::Granted { fence, slots } => {
                            Ok(leases.granted(asked, slots, fence, sent))
                        }
                        Taken::Refused { again, held_for } => Err(refused(again, held_for)),
                    }));
                });
            }
        }
        self.sweep_later();
    }

    fn granted(
        self: &Arc<Self>,
        asked: Asked,
        slots: Arc<[i64]>,
        fence: i64,
        sent: Time,
    ) -> Claim<C> {
        let (ttl, renewed) = (asked.terms.ttl(), asked.terms.is_renewed());
        let entry = Entry {
            namespace: asked.namespace,
            key: asked.key,
            slots: Arc::clone(&slots),
            fence,
            ttl,
            deadline: deadline(sent, ttl),
            due: first_look(sent, ttl, renewed),
            renewed,
            hold: Arc::default(),
        };
        self.tell(&entry);
        let hold = Arc::clone(&entry.hold);
        let mut state = self.lock();
        let id = state.next;
        state.next += 1;
        state.due.insert((entry.due, id));
        state.entries.insert(id, entry);
        self.arm(state);
        Claim {
            leases: Some(Arc::clone(self)),
            id,
            slots,
            fence,
            hold,
        }
    }

    /// Sees to it that the keeper looks when the first entry is due.
    fn arm(&self, mut state: MutexGuard<'_, State>) {
        let Some((first, _)) = state.due.first().copied() else {
            return;
        };
        if state.armed.is_some_and(|armed| armed <= first) {
            return;
        }
        state.armed = Some(first);
        drop(state);
        let this = self.this.clone();
        self.keeper.run_at(first, move || {
            if let Some(leases) = this.upgrade() {
                leases.look(first);
            }
        });
    }

    /// Runs on the keeper's thread: loses what has ended and renews what is due.
    fn look(&self, armed: Time) {
        let now = self.keeper.now();
        let mut renewals = Vec::new();
        let mut lost = Vec::new();
        let mut state = self.lock();
        if state.armed == Some(armed) {
            state.armed = None;
        }
        while let Some((due, id)) = state.due.first().copied() {
            let Some(entry) = state.entries.get(&id) else {
                state.due.remove(&(due, id));
                continue;
            };
            // What is nearly due goes along, so that leases come to be renewed together.
            let slack = if entry.renewed && entry.deadline > due {
                entry.ttl / SLACK_PART
            } else {
                Duration::ZERO
            };
            if due > now + slack {
                break;
            }
            if now >= entry.deadline {
                entry.hold.lose();
                lost.extend(state.remove(id));
                continue;
            }
            renewals.push((id, entry.ttl, entry.renew()));
            // Nothing more to do than to lose it, unless the renewal is answered.
            let deadline = entry.deadline;
            state.schedule(id, deadline);
        }
        self.arm(state);
        telemetry::lost(Kind::Lease, lost.len());
        for entry in lost {
            entry.hold.announce();
        }
        for (id, ttl, renew) in renewals {
            let this = self.this.clone();
            self.lane.submit(renew.clone(), move |outcome| {
                if let Some(leases) = this.upgrade() {
                    leases.renewed(id, ttl, now, renew, &outcome);
                }
            });
        }
    }

    /// Takes the answer to a renewal that was sent at `sent`; answers whether the lease is still
    /// known here.
    fn renewed(
        &self,
        id: u64,
        ttl: Duration,
        sent: Time,
        renew: Renew,
        outcome: &Result<bool>,
    ) -> bool {
        telemetry::renewed(
            &renew.key,
            match outcome {
                Ok(true) => Renewal::Done,
                Ok(false) => Renewal::Lost,
                Err(_) => Renewal::Failed,
            },
        );
        let mut state = self.lock();
        let mut lost = None;
        let now = self.keeper.now();
        let held = |entry: &&mut Entry| now < entry.deadline;
        let Some(entry) = state.entries.get_mut(&id).filter(held) else {
            let late = state.remove(id);
            if let Some(entry) = &late {
                entry.hold.lose();
            }
            drop(state);
            if let Some(entry) = late {
                telemetry::lost(Kind::Lease, 1);
                entry.hold.announce();
            }
            if matches!(outcome, Ok(true)) {
                // It was lost while the answer was under way: nobody holds what was prolonged.
                self.give_back(renew);
            }
            return false;
        };
        match outcome {
            Ok(true) => {
                entry.deadline = entry.deadline.max(deadline(sent, ttl));
                let next = first_look(sent, ttl, entry.renewed);
                state.schedule(id, next);
            }
            Ok(false) => {
                entry.hold.lose();
                lost = state.remove(id);
            }
            // Unknown is not lost: it is held until the deadline, and asked again before.
            Err(_) if entry.renewed => {
                let again = self.keeper.now() + ttl / SLACK_PART;
                state.schedule(id, again);
            }
            Err(_) => {}
        }
        self.arm(state);
        if let Some(entry) = lost {
            telemetry::lost(Kind::Lease, 1);
            entry.hold.announce();
        }
        true
    }

    fn give_back(&self, renewed: Renew) {
        let Renew {
            namespace,
            key,
            slots,
            fence,
            ..
        } = renewed;
        let release = Release {
            namespace,
            key,
            slots,
            fence,
        };
        // When this fails it ends by itself.
        self.lane.submit(release, drop);
    }

    /// Renews now, at the caller's wish.
    pub(crate) async fn renew(&self, id: u64) -> Result<()> {
        let sent = self.keeper.now();
        let asked = (self.lock().entries.get(&id)).map(|entry| (entry.renew(), entry.ttl));
        let Some((renew, ttl)) = asked else {
            return Err(lost("renew"));
        };
        let outcome = self.lane.call(renew.clone()).await;
        let known = self.renewed(id, ttl, sent, renew, &outcome);
        match outcome {
            Ok(true) if known => Ok(()),
            Ok(_) => Err(lost("renew")),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn remaining(&self, id: u64) -> Duration {
        let now = self.keeper.now();
        self.lock()
            .entries
            .get(&id)
            .map_or(Duration::ZERO, |entry| entry.deadline.saturating_sub(now))
    }

    /// Releases; `answered` is told whether it was still held.
    fn release(
        self: &Arc<Self>,
        id: u64,
        hold: &Hold,
        answered: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        let entry = self.lock().remove(id);
        match entry {
            Some(entry) if hold.release() => self.send_release(entry, Some(Box::new(answered))),
            _ => answered(Err(lost("release"))),
        }
    }

    fn send_release(self: &Arc<Self>, entry: Entry, answered: Option<Answered>) {
        let release = Release {
            namespace: entry.namespace.to_string(),
            key: entry.key.to_string(),
            slots: Arc::clone(&entry.slots),
            fence: entry.fence,
        };
        let leases = Arc::clone(self);
        self.lane.submit(release, move |outcome| {
            let repeat = outcome.as_ref().is_err_and(|error| {
                matches!(
                    error.kind(),
                    ErrorKind::Unavailable | ErrorKind::Indeterminate
                )
            });
            if let Some(answered) = answered {
                answered(outcome.and_then(|held| if held { Ok(()) } else { Err(lost("release")) }));
            }
            let again = leases.keeper.now() + RELEASE_AGAIN;
            if repeat && again < entry.deadline {
                let this = Arc::downgrade(&leases);
                leases.keeper.run_at(again, move || {
                    if let Some(leases) = this.upgrade() {
                        leases.send_release(entry, None);
                    }
                });
            } else {
                leases.bucket(&entry.key).notify_waiters();
                leases.tell(&entry);
            }
        });
    }

    /// Notifies those who want to know who leads.
    fn tell(&self, entry: &Entry) {
        if *entry.slots == [slot::LEADER] {
            let topic = topic(&entry.namespace, &entry.key);
            // Who was not notified looks.
            self.lane.submit(super::Notify(topic), drop);
        }
    }

    /// Completes when some lease, perhaps the one with this key, was released in this process.
    pub(crate) fn bucket(&self, key: &str) -> &Notify {
        let hash = key.bytes().fold(0usize, |hash, byte| {
            hash.wrapping_mul(31).wrapping_add(usize::from(byte))
        });
        &self.released[hash % self.released.len()]
    }

    /// Deletes old rows from time to time, as long as leases are asked for.
    fn sweep_later(&self) {
        if std::mem::replace(&mut self.lock().sweeping, true) {
            return;
        }
        let this = self.this.clone();
        let jitter = Duration::from_secs(fastrand::u64(0..60));
        self.keeper
            .run_at(self.keeper.now() + SWEEP_EVERY + jitter, move || {
                if let Some(leases) = this.upgrade() {
                    leases.lock().sweeping = false;
                    leases.sweep();
                }
            });
    }

    /// Sweeps until nothing old is left, in parts that leave others their turn.
    fn sweep(&self) {
        let this = self.this.clone();
        self.lane
            .submit(Sweep { limit: SWEEP_ROWS }, move |deleted| {
                // A sweep that fails is made up for by the next.
                let more = deleted.is_ok_and(|deleted| deleted >= SWEEP_ROWS);
                if more && let Some(leases) = this.upgrade() {
                    let again = leases.keeper.now() + SWEEP_AGAIN;
                    leases.keeper.run_at(again, move || {
                        if let Some(leases) = this.upgrade() {
                            leases.sweep();
                        }
                    });
                }
            });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Answered = Box<dyn FnOnce(Result<()>) + Send>;

fn lost(operation: &'static str) -> Error {
    let message = "the lease was no longer held: it ended, or was given to another";
    Error::new(ErrorKind::Lost, operation, message)
}
