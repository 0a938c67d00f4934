//! The limits of a process.

mod answers;
mod charges;
mod denied_keys;
mod groups;
mod handle;
mod permits;
mod reservation;
mod share;
mod takes;
mod wait_queues;

use std::hash::BuildHasher;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxBuildHasher;

pub(super) use handle::open;

use super::batcher::Batcher;
use super::batcher::{ALONE, Queued, Reply};
use super::connection::Connections;
use super::sweeps::{PART, Sweeping, Sweeps};
use super::timer::Timer;
use crate::driver::SweepResult;
use crate::error::{Error, Result};
use crate::limit::{
    Block, Charge, ChargeLine, EndReservation, Expire, Outcome, Policy, RawDecision, ReadLevel,
    Refund, Reset, Sweep, Take,
};
use answers::{SingleLineReply, UndoingReply, Waiting, answer};
use denied_keys::DeniedKeys;
use permits::OpenBlocks;
use share::Shares;
use wait_queues::WaitQueues;

/// The number of batchers, among which keys are divided: while one waits for the disk the other works.
const BATCHERS: usize = 2;

impl Queued for EndReservation {
    const NAME: &'static str = "commit";
    const REPEATABLE: bool = false;
    const GIVES_BACK: bool = true;

    fn row_keys(&self) -> impl Iterator<Item = u64> {
        iter::once(hash(&self.key))
    }
}

impl Queued for Expire {
    const NAME: &'static str = "expire";

    fn row_keys(&self) -> impl Iterator<Item = u64> {
        iter::once(hash(&self.key))
    }
}

impl Queued for Refund {
    const NAME: &'static str = "refund";
    const REPEATABLE: bool = false;
    const GIVES_BACK: bool = true;

    fn row_keys(&self) -> impl Iterator<Item = u64> {
        iter::once(hash(&self.key))
    }
}

impl Queued for ReadLevel {
    const NAME: &'static str = "peek";
}

impl Queued for Block {
    const NAME: &'static str = "block";

    fn row_keys(&self) -> impl Iterator<Item = u64> {
        iter::once(hash(&self.key))
    }
}

impl Queued for Reset {
    const NAME: &'static str = "reset";

    fn row_keys(&self) -> impl Iterator<Item = u64> {
        iter::once(hash(&self.key))
    }
}

impl Queued for Sweep {
    const NAME: &'static str = "sweep";

    fn weight(&self) -> usize {
        ALONE
    }
}

impl Sweeping for Sweep {
    const EVERY: Duration = Duration::from_secs(300);

    fn next(self, swept: SweepResult<(String, String)>) -> Option<Self> {
        let after = swept.last?;
        Some(Self { after, ..self })
    }
}

/// The limits of a process on one database.
pub(crate) struct Limits {
    namespace: Arc<str>,
    batchers: [Arc<Batcher>; BATCHERS],
    timer: Timer,
    /// Callers that wait until they are admitted.
    wait_queues: WaitQueues,
    shares: Shares,
    denied_keys: DeniedKeys,
    open_blocks: OpenBlocks,
    sweeps: Arc<Sweeps>,
}

impl Limits {
    pub(crate) fn new(
        namespace: Arc<str>,
        connections: &Arc<Connections>,
        sweeps: Arc<Sweeps>,
    ) -> Arc<Self> {
        Arc::new(Self {
            namespace,
            batchers: [(); BATCHERS].map(|()| Batcher::new(Arc::clone(connections))),
            timer: connections.timer.clone(),
            wait_queues: WaitQueues::default(),
            shares: Shares::default(),
            denied_keys: DeniedKeys::default(),
            open_blocks: OpenBlocks::default(),
            sweeps,
        })
    }

    pub(crate) fn close(&self) {
        for batcher in &self.batchers {
            batcher.close();
        }
    }

    /// Gives back what is left of blocks of permits; in the background.
    pub(crate) fn give_back_blocks(&self) {
        for refund in self.open_blocks.leave() {
            self.refund(refund, drop);
        }
    }

    /// Whether the policy for outages decides, without asking the database.
    fn is_out(&self, policy: &Policy) -> bool {
        !self.is_closing() && self.shares.is_out(policy, self.timer.now())
    }

    /// Whether the policy for outages decides, after this error.
    fn applies(&self, policy: &Policy, error: &Error) -> bool {
        !self.is_closing() && self.shares.applies(policy, error, self.timer.now())
    }

    /// A backend that is closed permits nothing, whatever the policy.
    fn is_closing(&self) -> bool {
        self.batchers.iter().any(|batcher| batcher.is_closing())
    }

    /// The batcher of a key.
    fn batcher(&self, key: &str) -> &Arc<Batcher> {
        let upper = hash(key) >> 32;
        &self.batchers[usize::try_from(upper).unwrap_or(0) % BATCHERS]
    }

    /// Requests permits of one limit, as many of `times` as there are; of windows all or none.
    fn take(self: &Arc<Self>, line: ChargeLine, times: u64, relaxed: bool) -> Waiting<RawDecision> {
        self.sweep_later();
        let (reply, waiting) = self.answer(&line);
        let batcher = self.batcher(&line.key);
        if line.quota.window() > 0 {
            let charge = Charge {
                namespace: self.namespace.to_string(),
                lines: vec![line],
                times: 1,
                relaxed,
            };
            batcher.queue(charge, 1, Reply::new(SingleLineReply(reply)));
            return waiting;
        }
        let times = i64::try_from(times).unwrap_or(i64::MAX);
        let take = Take {
            namespace: self.namespace.to_string(),
            price: line.price(),
            depth: line.quota.price(line.quota.limit()),
            times,
            relaxed,
            read_first: self.denied_keys.contains(hash(&line.key)),
            key: line.key,
        };
        batcher.queue(take, times, Reply::new(reply));
        waiting
    }

    /// Both sides of an answer to a request for one limit; what nobody gets is given back.
    fn answer(
        self: &Arc<Self>,
        line: &ChargeLine,
    ) -> (UndoingReply<RawDecision>, Waiting<RawDecision>) {
        let (undoing, undone) = (Arc::downgrade(self), line.clone());
        answer(move |decided: RawDecision| {
            if let (Outcome::Taken(times), Some(limits)) = (decided.outcome, undoing.upgrade()) {
                limits.undo(&undone, times, decided.now);
            }
        })
    }

    /// Asks for permits of several limits.
    fn charge(self: &Arc<Self>, charge: Charge) -> Waiting<Vec<RawDecision>> {
        self.sweep_later();
        let (undoing, undone) = (Arc::downgrade(self), charge.lines.clone());
        let (reply, waiting) = answer(move |decided: Vec<RawDecision>| {
            let Some(limits) = undoing.upgrade() else {
                return;
            };
            for (line, decided) in undone.iter().zip(decided) {
                if let Outcome::Taken(times) = decided.outcome {
                    limits.undo(line, times, decided.now);
                }
            }
        });
        let first = charge.lines.first().map_or("", |line| &line.key);
        let reply = Reply::new(reply);
        self.batcher(first).queue(charge, 1, reply);
        waiting
    }

    /// Gives back in the background. What does not get through stays taken.
    fn undo(&self, line: &ChargeLine, times: i64, at: i64) {
        if line.id != 0 {
            self.end_reservation(self.reservation_end(&line.key, line.id, line.price()), drop);
            return;
        }
        let refund = Refund {
            namespace: self.namespace.to_string(),
            key: line.key.clone(),
            price: line.price().saturating_mul(times),
            window: line.quota.window(),
            at,
        };
        self.refund(refund, drop);
    }

    /// Gives permits back, even if the caller is gone.
    fn refund(&self, refund: Refund, done: impl FnOnce(Result<()>) + Send + 'static) {
        self.batcher(&refund.key)
            .submit(refund, move |answer| done(answer.map(drop)));
    }

    /// The end of a reservation of which `price` is given back.
    fn reservation_end(&self, key: &str, id: i64, price: i64) -> EndReservation {
        EndReservation {
            namespace: self.namespace.to_string(),
            key: key.to_owned(),
            id,
            price,
        }
    }

    /// Ends a reservation, even if the caller is gone; if that fails, it expires. Returns whether it
    /// was there.
    fn end_reservation(
        &self,
        end: EndReservation,
        done: impl FnOnce(Result<bool>) + Send + 'static,
    ) {
        self.batcher(&end.key).submit(end, done);
    }

    /// Deletes idle rows from time to time, as long as limits are used.
    fn sweep_later(&self) {
        self.sweeps.later(0, first_part);
    }
}

/// The first part of a sweep.
fn first_part() -> Sweep {
    Sweep {
        after: Default::default(),
        most: PART,
    }
}

fn hash(key: &str) -> u64 {
    FxBuildHasher.hash_one(key)
}

/// The line of a request.
fn line(request: &crate::limit::PermitRequest, policy: &Policy) -> Result<ChargeLine> {
    let quota = request.check(policy.quota)?;
    Ok(ChargeLine {
        key: request.key.to_string(),
        quota,
        cost: request.cost,
        id: 0,
        ttl: 0,
    })
}
