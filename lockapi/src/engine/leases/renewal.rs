//! Renewing leases before they end, and losing those that do.

use std::time::Duration;

use tokio::sync::oneshot;

use super::{Entry, Leases, kind, lost};
use crate::engine::batcher::ended;
use crate::engine::clock::Time;
use crate::engine::renewal::{self, Held, Holdings, deadline};
use crate::error::Result;
use crate::lease::Renew;
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;
use crate::telemetry::{self, Renewal};

impl Leases {
    pub(super) fn arm(&self, held: MutexGuard<'_, Holdings<u64, Entry>>) {
        renewal::arm(held, &self.timer, &self.this, Self::renew_due);
    }

    /// Runs on the timer's thread: loses what has ended and renews what is due.
    fn renew_due(&self, armed: Time) {
        let now = self.timer.now();
        let mut renewals = Vec::new();
        let mut lost = Vec::new();
        let mut held = self.lock();
        held.timer_fired(armed);
        while let Some(id) = held.next_due(now, Held::slack) {
            let Some(entry) = held.get_mut(id) else {
                break;
            };
            if now >= entry.deadline() {
                entry.hold.lose();
                lost.extend(held.remove(id));
                continue;
            }
            renewals.push((id, entry.ttl, entry.what.renew(entry.ttl)));
            entry.what.renewing += 1;
            // Nothing more to do than to lose it, unless the renewal is answered.
            let deadline = entry.deadline();
            held.schedule(id, deadline);
        }
        self.arm(held);
        telemetry::lost(lost.iter().map(|entry| entry.what.kind()));
        for entry in lost {
            entry.hold.announce();
            if entry.what.may_be_prolonged() {
                // Nobody holds what was, or may yet be, prolonged.
                self.give_back(entry);
            }
        }
        for (id, ttl, renew) in renewals {
            self.send_renewal(id, ttl, now, renew, |_, _| ());
        }
    }

    /// Sends a renewal; `answered` gets whether the lease is still known here, and the answer.
    fn send_renewal(
        &self,
        id: u64,
        ttl: Duration,
        sent: Time,
        renew: Renew,
        answered: impl FnOnce(bool, Result<bool>) + Send + 'static,
    ) {
        let this = self.this.clone();
        self.renewals.submit(renew.clone(), move |outcome| {
            let leases = this.upgrade();
            let known = leases.is_some_and(|it| it.renewed(id, ttl, sent, &renew, &outcome));
            answered(known, outcome);
        });
    }

    /// Takes the answer to a renewal that was sent at `sent`; answers whether the lease is still
    /// known here.
    fn renewed(
        &self,
        id: u64,
        ttl: Duration,
        sent: Time,
        renew: &Renew,
        outcome: &Result<bool>,
    ) -> bool {
        let renewal = match outcome {
            Ok(true) => Renewal::Done,
            Ok(false) => Renewal::Lost,
            Err(_) => Renewal::Failed,
        };
        telemetry::renewed(kind(&renew.slots), &renew.key, renewal);
        if outcome.is_err() {
            self.renewals_ready.store(false, Ordering::Relaxed);
        }
        let mut held = self.lock();
        if let Some(entry) = held.get_mut(id) {
            entry.what.renewing -= 1;
            entry.what.uncertain = outcome.is_err();
        }
        let now = self.timer.now();
        let Some(entry) = held.get(id).filter(|entry| now < entry.deadline()) else {
            let late = held.remove(id);
            if let Some(entry) = &late {
                entry.hold.lose();
            }
            drop(held);
            // What was removed before has been released behind this renewal. Another release would have
            // its row locked for a moment, and refuse who comes next.
            if let Some(entry) = late {
                telemetry::lost([entry.what.kind()].into_iter());
                entry.hold.announce();
                if matches!(outcome, Ok(true)) || entry.what.may_be_prolonged() {
                    // Nobody holds what was prolonged.
                    self.give_back(entry);
                }
            }
            return false;
        };
        let mut lost = None;
        match outcome {
            Ok(true) => {
                let until = entry.deadline().max(deadline(sent, ttl));
                held.renewed(id, sent, ttl, until);
            }
            Ok(false) => {
                entry.hold.lose();
                lost = held.remove(id);
            }
            // Unknown is not lost: it is held until the deadline, and asked again before.
            Err(_) if entry.renewed => {
                let again = entry.repeat_at(self.timer.now());
                held.schedule(id, again);
            }
            Err(_) => {}
        }
        self.arm(held);
        if let Some(entry) = lost {
            telemetry::lost([entry.what.kind()].into_iter());
            entry.hold.announce();
            if entry.what.slots.len() > 1 {
                // The others may have been renewed.
                self.give_back(entry);
            }
        }
        true
    }

    fn give_back(&self, lost: Held<Entry>) {
        if let Some(leases) = self.this.upgrade() {
            leases.send_release(lost, None);
        }
    }

    /// Renews now, at the caller's wish.
    pub(crate) async fn renew(&self, id: u64) -> Result<()> {
        let sent = self.timer.now();
        let request = self.lock().get_mut(id).map(|entry| {
            entry.what.renewing += 1;
            (entry.what.renew(entry.ttl), entry.ttl)
        });
        let Some((renew, ttl)) = request else {
            return Err(lost("renew"));
        };
        let (sender, answer) = oneshot::channel();
        self.send_renewal(id, ttl, sent, renew, move |known, outcome| {
            // A caller that left does not want the answer.
            drop(sender.send((known, outcome)));
        });
        let unanswered = |_| (true, Err(ended("renew")));
        let (known, outcome) = answer.await.unwrap_or_else(unanswered);
        match outcome {
            Ok(true) if known => Ok(()),
            Ok(_) => Err(lost("renew")),
            Err(error) => Err(error),
        }
    }
}
