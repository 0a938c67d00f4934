//! Releasing leases.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::{AcquireRequest, Entry, Leases, RequestedSlots, lost};
use crate::election::topic;
use crate::engine::batcher::{Repeated, Reply};
use crate::engine::clock::Time;
use crate::engine::renewal::Held;
use crate::engine::{Notify, catch_panic};
use crate::error::{Error, ErrorKind, Result};
use crate::hold::Hold;
use crate::lease::{Abandon, slot};
use crate::telemetry;

/// The pause before a release that did not get through is sent again.
const RELEASE_AGAIN: Duration = Duration::from_millis(250);

/// For at least so long an acquisition whose answer was lost is looked for again: its statement may
/// still run …
const LOOKS: Duration = Duration::from_secs(10);
/// … and for so many times as long as the server may take: the network may be late with the request, and
/// then the server with the commit.
const LOOKS_TIMEOUTS: u32 = 2;

type Answered = Box<dyn FnOnce(Result<Released>) + Send>;

/// What a release found.
pub(super) enum Released {
    Held,
    Lost,
    /// It is not held any more, and was as far as this process knows: it was sent twice, and the first may have released
    /// it, or waited until it had ended.
    Unknown,
}

impl Released {
    /// What its holder is told.
    fn told(self) -> Result<()> {
        let message = "the lease was not held any more when the release was repeated, or carried out after it had ended";
        match self {
            Self::Held => Ok(()),
            Self::Lost => Err(lost("release")),
            Self::Unknown => Err(Error::new(ErrorKind::Indeterminate, "release", message)),
        }
    }
}

impl Leases {
    /// Releases; `answered` gets whether it was still held.
    pub(super) fn release(
        self: &Arc<Self>,
        id: u64,
        hold: &Hold,
        answered: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        let entry = self.lock().remove(id);
        match entry {
            // By the clock it is lost, and its holder may have been told so: the timer has not had its turn yet.
            Some(entry) if hold.is_lost_at(self.timer.now()) => {
                hold.lose();
                telemetry::lost([entry.what.kind()].into_iter());
                hold.announce();
                self.send_release(entry, None);
                answered(Err(lost("release")));
            }
            Some(entry) if hold.release() => {
                let told = |outcome: Result<Released>| answered(outcome.and_then(Released::told));
                self.send_release(entry, Some(Box::new(told)));
            }
            _ => answered(Err(lost("release"))),
        }
    }

    /// Gives back what its caller never got: nobody has worked under it, so no minimum hold keeps it.
    pub(super) fn give_up(
        self: &Arc<Self>,
        id: u64,
        hold: &Hold,
        request: &AcquireRequest,
        acquisition: i64,
    ) {
        if self.lock().remove(id).is_some() && hold.release() {
            let (now, ttl) = (self.timer.now(), request.options.ttl());
            self.send_abandon(abandoned(request, acquisition, None), now, now + ttl);
        }
    }

    /// Releases all that is held; answers what became of each.
    pub(crate) fn release_all(self: &Arc<Self>) -> Vec<oneshot::Receiver<Result<()>>> {
        let entries = self.lock().take(|_| true);
        let release = |(_, entry): (u64, Held<Entry>)| {
            let (sender, answer) = oneshot::channel();
            entry.hold.lose();
            entry.hold.announce();
            // The caller of `close` may be gone, and does not want to know since when nothing is held.
            let released: Answered = Box::new(|outcome| drop(sender.send(outcome.map(drop))));
            self.send_release(entry, Some(released));
            answer
        };
        entries.into_iter().map(release).collect()
    }

    pub(super) fn send_release(self: &Arc<Self>, held: Held<Entry>, answered: Option<Answered>) {
        // By then it has ended by itself, whatever a renewal did to it.
        let until = self.timer.now() + held.ttl;
        self.try_release(held, until, answered);
    }

    fn try_release(self: &Arc<Self>, held: Held<Entry>, until: Time, answered: Option<Answered>) {
        let entry = &held.what;
        let leases = Arc::clone(self);
        // Behind a renewal of its own, which would otherwise have the row locked for a moment after
        // the release: who comes next would be told that it is held.
        let batcher = if entry.renewing > 0 {
            &self.renewals
        } else {
            &self.batcher
        };
        let release = entry.release();
        let reply = move |outcome: Result<bool>, Repeated(repeated)| {
            let repeat = outcome.is_err();
            if let Some(answered) = answered {
                let ended = leases.timer.now() >= held.deadline();
                let outcome = outcome.map(|held| match held {
                    true => Released::Held,
                    false if repeated || ended => Released::Unknown,
                    false => Released::Lost,
                });
                // The waker of its caller may panic; the rest is for others.
                catch_panic(|| answered(outcome));
            }
            let again = leases.timer.now() + RELEASE_AGAIN;
            if repeat && again < until {
                let this = Arc::downgrade(&leases);
                leases.timer.run_at(again, move || {
                    if let Some(leases) = this.upgrade() {
                        leases.try_release(held, until, None);
                    }
                });
            } else {
                let entry = &held.what;
                // Those who wait for permits are in one line.
                if let Some(slot) = entry.slots.first() {
                    leases.wake(&entry.key, *slot);
                }
                leases.notify(&entry.namespace, &entry.key, &entry.slots);
            }
        };
        batcher.queue(release, 1, Reply::new(reply));
    }

    /// Gives back what an acquisition got, or may yet get, that its caller is not told of: all but what
    /// it has under the token `granted`.
    pub(super) fn abandon(
        self: &Arc<Self>,
        request: &AcquireRequest,
        acquisition: i64,
        granted: Option<i64>,
    ) {
        let abandon = abandoned(request, acquisition, granted);
        let now = self.timer.now();
        let ttl = request.options.ttl();
        let looks = LOOKS.max(self.batcher.timeout() * LOOKS_TIMEOUTS);
        self.send_abandon(abandon, now + looks.min(ttl), now + ttl);
    }

    /// Until `seen` a try of the acquisition may not have arrived yet, also when another was found;
    /// after `ends` it has ended by itself.
    fn send_abandon(self: &Arc<Self>, abandon: Abandon, seen: Time, ends: Time) {
        let leases = Arc::clone(self);
        self.batcher.submit(abandon.clone(), move |outcome| {
            let again = leases.timer.now() + RELEASE_AGAIN;
            let until = if outcome.is_ok() { seen } else { ends };
            let last = again >= until;
            if last || matches!(outcome, Ok(true)) {
                leases.wake(&Arc::from(&*abandon.key), abandon.first);
                leases.notify(&abandon.namespace, &abandon.key, &[abandon.first]);
            }
            if !last {
                let this = Arc::downgrade(&leases);
                leases.timer.run_at(again, move || {
                    if let Some(leases) = this.upgrade() {
                        leases.send_abandon(abandon, seen, ends);
                    }
                });
            }
        });
    }

    /// Notifies those who want to know who leads.
    pub(super) fn notify(&self, namespace: &str, key: &str, slots: &[i64]) {
        if *slots == [slot::LEADER] {
            let topic = topic(namespace, key);
            // Who was not notified looks.
            self.batcher.submit(Notify(topic), drop);
        }
    }
}

fn abandoned(request: &AcquireRequest, acquisition: i64, granted: Option<i64>) -> Abandon {
    let (first, last) = match request.what {
        RequestedSlots::Slot(slot) => (slot, slot),
        RequestedSlots::Permits { permits, .. } => (1, permits),
    };
    Abandon {
        namespace: request.namespace.to_string(),
        key: request.key.to_string(),
        first,
        last,
        acquisition,
        granted: granted.unwrap_or(0),
    }
}
