//! The leases of a process: requests for them, and the state of those that it holds.

mod claim;
mod releasing;
mod renewal;
mod requests;
mod sweeping;

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

pub(crate) use claim::Claim;
pub(super) use requests::answer_limit;

use super::batcher::Batcher;
use super::batcher::{self, Repeated, Reply};
use super::clock::Time;
use super::renewal::{Held, Holdings, deadline};
use super::sweeps::Sweeps;
use super::timer::Timer;
use crate::engine::is_closed;
use crate::engine::keyed_fifo::KeyedFifo;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{Acquired, LeaseOptions, Release, Renew, Taken, slot};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::telemetry::Kind;

struct Entry {
    namespace: Arc<str>,
    key: Arc<str>,
    slots: Arc<[i64]>,
    fence: i64,
    /// How many renewals have not been answered.
    renewing: u32,
    /// Whether the last of those that were answered failed: it may have had its effect.
    uncertain: bool,
}

impl Entry {
    fn renew(&self, ttl: Duration) -> Renew {
        Renew {
            namespace: self.namespace.to_string(),
            key: self.key.to_string(),
            slots: Arc::clone(&self.slots),
            fence: self.fence,
            ttl: crate::lease::micros(ttl),
        }
    }

    fn release(&self) -> Release {
        Release {
            namespace: self.namespace.to_string(),
            key: self.key.to_string(),
            slots: Arc::clone(&self.slots),
            fence: self.fence,
        }
    }

    /// Whether it may be held longer at the server than it is known to be.
    fn may_be_prolonged(&self) -> bool {
        self.renewing > 0 || self.uncertain
    }

    fn kind(&self) -> Kind {
        kind(&self.slots)
    }
}

/// A request for slots of a key.
pub(crate) struct AcquireRequest {
    pub(crate) namespace: Arc<str>,
    pub(crate) key: Arc<str>,
    pub(crate) what: RequestedSlots,
    pub(crate) options: Arc<LeaseOptions>,
}

/// Which slots of a key are requested.
#[derive(Clone, Copy)]
pub(crate) enum RequestedSlots {
    /// This one.
    Slot(i64),
    /// So many of those from 1 to `permits`.
    Permits { permits: i64, count: i64 },
}

impl RequestedSlots {
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Slot(slot) => kind(&[slot]),
            Self::Permits { .. } => Kind::Semaphore,
        }
    }
}

/// A claim, or why there is none.
pub(crate) type Granted = std::result::Result<Claim, Refused>;

/// A token and slots, or why there are none.
type Answer = std::result::Result<(i64, Arc<[i64]>), Refused>;

/// Why a request was not granted.
pub(crate) struct Refused {
    /// It can be granted at once.
    pub(crate) again: bool,
    /// It was granted, and went back because the answer took longer than its time to live.
    pub(crate) late: bool,
    /// Others hold it, for at most this time unless they renew; `None` when nobody does, and only a
    /// transaction that is open is in the way.
    pub(crate) held_for: Option<Duration>,
}

impl Refused {
    fn new(again: bool, held_for: i64) -> Self {
        let held_for = u64::try_from(held_for).ok().filter(|left| *left > 0);
        Self {
            again,
            late: false,
            held_for: held_for.map(Duration::from_micros),
        }
    }
}

/// Answers a caller; nothing is sent for one that has left before.
struct Asked<F> {
    sender: oneshot::Sender<Result<Granted>>,
    answer: F,
}

impl<T, F> batcher::Answer<T> for Asked<F>
where
    F: FnOnce(Result<T>, Repeated) -> Result<Granted> + Send,
{
    fn answer(self: Box<Self>, outcome: Result<T>, repeated: Repeated) {
        // A caller that left drops its claim, which gives the lease back.
        drop(self.sender.send((self.answer)(outcome, repeated)));
    }

    fn is_awaited(&self) -> bool {
        !self.sender.is_closed()
    }
}

/// The leases of a process on one database.
pub(crate) struct Leases {
    held: Mutex<Holdings<u64, Entry>>,
    next: AtomicU64,
    pub(crate) batcher: Arc<Batcher>,
    /// A renewal waits behind nothing but renewals, and releases of what is being renewed.
    renewals: Arc<Batcher>,
    /// Whether there is a connection for them: the time limit of a renewal may be too short to open one.
    pub(crate) renewals_ready: AtomicBool,
    sweeps: Arc<Sweeps>,
    pub(crate) timer: Timer,
    /// Callers that wait for a slot of a key, or for any of its permits. They are woken when it was released here.
    pub(crate) waiting: KeyedFifo<(Arc<str>, i64)>,
    this: Weak<Leases>,
}

impl Leases {
    pub(crate) fn new(
        batcher: Arc<Batcher>,
        renewals: Arc<Batcher>,
        sweeps: Arc<Sweeps>,
        timer: Timer,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            held: Mutex::default(),
            next: AtomicU64::new(0),
            batcher,
            renewals,
            renewals_ready: AtomicBool::new(false),
            sweeps,
            timer,
            waiting: KeyedFifo::default(),
            this: this.clone(),
        })
    }

    /// Sends one request. `answered` is called by the batcher, with a claim that releases when dropped.
    pub(crate) fn ask(
        self: &Arc<Self>,
        request: AcquireRequest,
        sender: oneshot::Sender<Result<Granted>>,
    ) {
        self.sweep_later();
        let sent = self.timer.now();
        let leases = Arc::clone(self);
        let (namespace, key) = (&*request.namespace, &*request.key);
        match request.what {
            RequestedSlots::Slot(slot) => {
                let acquire = match request.options.acquire(namespace, key, slot) {
                    Ok(acquire) => acquire,
                    Err(error) => return drop(sender.send(Err(error))),
                };
                let number = acquire.acquisition;
                let answer = move |outcome: Result<Acquired>, repeated| {
                    let outcome = outcome.map(|acquired| match acquired {
                        Acquired::Granted(fence) => Ok((fence, Arc::from([slot]))),
                        Acquired::Held(left) => Err(Refused::new(false, left)),
                    });
                    let answer = leases.answered(request, number, sent, outcome, repeated);
                    leases.unless_closing(answer)
                };
                self.batcher
                    .queue(acquire, 1, Reply::new(Asked { sender, answer }));
            }
            RequestedSlots::Permits { permits, count } => {
                let take = match request.options.take(namespace, key, permits, count) {
                    Ok(take) => take,
                    Err(error) => return drop(sender.send(Err(error))),
                };
                let number = take.acquisition;
                let answer = move |outcome: Result<Taken>, repeated| {
                    let outcome = outcome.map(|taken| match taken {
                        Taken::Granted { fence, slots } => Ok((fence, slots)),
                        Taken::Refused { again, held_for } => Err(Refused::new(again, held_for)),
                    });
                    let answer = leases.answered(request, number, sent, outcome, repeated);
                    leases.unless_closing(answer)
                };
                self.batcher
                    .queue(take, 1, Reply::new(Asked { sender, answer }));
            }
        }
    }

    /// What the server's answer to a request that was sent at `sent` means here.
    fn answered(
        self: &Arc<Self>,
        request: AcquireRequest,
        acquisition: i64,
        sent: Time,
        outcome: Result<Answer>,
        repeated: Repeated,
    ) -> Result<Granted> {
        let late = self.timer.now() >= deadline(sent, request.options.ttl());
        match outcome {
            Ok(Ok(_)) if late => {
                // By this clock it has ended already: it is released.
                self.abandon(&request, acquisition, None);
                Ok(Err(Refused {
                    late: true,
                    ..Refused::new(true, 0)
                }))
            }
            Ok(Ok((fence, slots))) => {
                if repeated.0 {
                    // The first try may get other slots yet, or the same once they are released.
                    self.abandon(&request, acquisition, Some(fence));
                }
                Ok(Ok(self.granted(request, acquisition, slots, fence, sent)))
            }
            Ok(Err(refused)) => {
                if repeated.0 {
                    // What is in the way may be the first try.
                    self.abandon(&request, acquisition, None);
                }
                Ok(Err(refused))
            }
            Err(error) => {
                let perhaps = matches!(error.kind(), ErrorKind::Indeterminate | ErrorKind::Corrupt);
                if perhaps {
                    self.abandon(&request, acquisition, None);
                }
                Err(error)
            }
        }
    }

    /// What was granted to a backend that is being closed goes back.
    fn unless_closing(&self, answer: Result<Granted>) -> Result<Granted> {
        match answer {
            Ok(Ok(_)) if self.batcher.is_closing() => Err(is_closed().error("acquire")),
            answer => answer,
        }
    }

    fn granted(
        self: &Arc<Self>,
        request: AcquireRequest,
        acquisition: i64,
        slots: Arc<[i64]>,
        fence: i64,
        sent: Time,
    ) -> Claim {
        let (ttl, renewed) = (request.options.ttl(), request.options.is_renewed());
        let entry = Entry {
            namespace: Arc::clone(&request.namespace),
            key: Arc::clone(&request.key),
            slots: Arc::clone(&slots),
            fence,
            renewing: 0,
            uncertain: false,
        };
        self.notify(&entry.namespace, &entry.key, &entry.slots);
        let entry = Held::new(sent, ttl, renewed, entry);
        let hold = Arc::clone(&entry.hold);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut held = self.lock();
        held.insert(id, entry);
        self.arm(held);
        Claim {
            leases: Some(Arc::clone(self)),
            id,
            slots,
            fence,
            hold,
            undelivered: Some((request, acquisition)),
        }
    }

    /// Lets those of this process look who wait for a slot of a key, which may be free.
    pub(crate) fn wake(&self, key: &Arc<str>, slot: i64) {
        let line = slot::line(slot);
        self.waiting.wake(&(Arc::clone(key), line));
    }

    fn lock(&self) -> MutexGuard<'_, Holdings<u64, Entry>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn kind(slots: &[i64]) -> Kind {
    match slots {
        [slot::LEASE] => Kind::Lease,
        [slot::LEADER] => Kind::Election,
        [slot::MUTEX] => Kind::LeasedMutex,
        _ => Kind::Semaphore,
    }
}

fn lost(operation: &'static str) -> Error {
    let message =
        "the lease was no longer held: it expired, was ended, or was given to another holder";
    Error::new(ErrorKind::Lost, operation, message)
}
