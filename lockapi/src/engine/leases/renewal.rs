//! Renewing leases before they end, and losing those that do.

use std::sync::MutexGuard;
use std::time::Duration;

use tokio::sync::oneshot;

use super::{Entry, Leases, State, kind, lost};
use crate::engine::batcher::ended;
use crate::engine::clock::Time;
use crate::error::Result;
use crate::lease::{Release, Renew};
use crate::telemetry::{self, Renewal};

/// A lease is renewed when this part of its time to live has passed …
const RENEW_PART: u32 = 3;
/// … together with those that are due within this part, and a failed renewal is repeated after it.
const SLACK_PART: u32 = 12;
/// This part is given up for the difference in speed of two clocks.
const DRIFT_PART: u32 = 50;

impl Leases {
    /// Sees to it that the timer looks when the first entry is due.
    pub(super) fn arm(&self, mut state: MutexGuard<'_, State>) {
        let Some((first, _)) = state.due.first().copied() else {
            return;
        };
        if state.armed.is_some_and(|armed| armed <= first) {
            return;
        }
        state.armed = Some(first);
        drop(state);
        let this = self.this.clone();
        self.timer.run_at(first, move || {
            if let Some(leases) = this.upgrade() {
                leases.look(first);
            }
        });
    }

    /// Runs on the timer's thread: loses what has ended and renews what is due.
    fn look(&self, armed: Time) {
        let now = self.timer.now();
        let mut renewals = Vec::new();
        let mut lost = Vec::new();
        let mut state = self.lock();
        if state.armed == Some(armed) {
            state.armed = None;
        }
        while let Some((due, id)) = state.due.first().copied() {
            let Some(entry) = state.entries.get_mut(&id) else {
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
            entry.renewing += 1;
            // Nothing more to do than to lose it, unless the renewal is answered.
            let deadline = entry.deadline;
            state.schedule(id, deadline);
        }
        self.arm(state);
        telemetry::lost(lost.iter().map(Entry::kind));
        for entry in lost {
            entry.hold.announce();
        }
        for (id, ttl, renew) in renewals {
            self.send_renewal(id, ttl, now, renew, |_, _| ());
        }
    }

    /// Sends a renewal; `answered` is told whether the lease is still known here, and the answer.
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
            let known = leases.is_some_and(|it| it.renewed(id, ttl, sent, renew, &outcome));
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
        renew: Renew,
        outcome: &Result<bool>,
    ) -> bool {
        let told = match outcome {
            Ok(true) => Renewal::Done,
            Ok(false) => Renewal::Lost,
            Err(_) => Renewal::Failed,
        };
        telemetry::renewed(kind(&renew.slots), &renew.key, told);
        let mut state = self.lock();
        let mut lost = None;
        let mut partly = false;
        if let Some(entry) = state.entries.get_mut(&id) {
            entry.renewing -= 1;
        }
        let now = self.timer.now();
        let held = |entry: &&mut Entry| now < entry.deadline;
        let Some(entry) = state.entries.get_mut(&id).filter(held) else {
            let late = state.remove(id);
            if let Some(entry) = &late {
                entry.hold.lose();
            }
            drop(state);
            if let Some(entry) = late {
                telemetry::lost([entry.kind()].into_iter());
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
                // Of several slots the others may have been renewed.
                partly = renew.slots.len() > 1;
            }
            // Unknown is not lost: it is held until the deadline, and asked again before.
            Err(_) if entry.renewed => {
                let again = self.timer.now() + ttl / SLACK_PART;
                state.schedule(id, again);
            }
            Err(_) => {}
        }
        self.arm(state);
        if let Some(entry) = lost {
            telemetry::lost([entry.kind()].into_iter());
            entry.hold.announce();
        }
        if partly {
            self.give_back(renew);
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
        self.batcher.submit(release, drop);
    }

    /// Renews now, at the caller's wish.
    pub(crate) async fn renew(&self, id: u64) -> Result<()> {
        let sent = self.timer.now();
        let request = self.lock().entries.get_mut(&id).map(|entry| {
            entry.renewing += 1;
            (entry.renew(), entry.ttl)
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

    pub(crate) fn remaining(&self, id: u64) -> Duration {
        let now = self.timer.now();
        self.lock()
            .entries
            .get(&id)
            .map_or(Duration::ZERO, |entry| entry.deadline.saturating_sub(now))
    }
}

/// How long a lease is surely held, counted from before the request was sent.
pub(super) fn deadline(sent: Time, ttl: Duration) -> Time {
    sent + ttl.saturating_sub(ttl / DRIFT_PART)
}

/// When a lease that was granted or renewed has to be looked at.
pub(super) fn first_look(sent: Time, ttl: Duration, renewed: bool) -> Time {
    if renewed {
        sent + ttl / RENEW_PART
    } else {
        deadline(sent, ttl)
    }
}
