//! What is told to `tracing` and `metrics`, each if its feature is on.
#![allow(
    unused_variables,
    dead_code,
    reason = "one of the two features may be off"
)]

use std::sync::Arc;
use std::time::Duration;

use super::{Kind, Renewal, Warn};
use crate::engine::Keeper;
use crate::hold::Hold;
use crate::key::Key;
use crate::queue::Statistics;

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Lease => "lease",
        }
    }
}

/// A point on the clock of the backend.
#[derive(Clone, Copy)]
pub(crate) struct Stamp(Duration);

impl Stamp {
    pub(crate) fn take(keeper: &Keeper) -> Self {
        Self(keeper.now())
    }
}

/// Tells when the guard that it belongs to is gone.
pub(crate) struct Held {
    kind: Kind,
    key: Key,
    since: Duration,
    warn: Option<Duration>,
    keeper: Keeper,
    hold: Arc<Hold>,
}

impl Held {
    /// The hold ends now, and not when the release has been answered.
    pub(crate) fn end(self) {
        drop(self);
    }
}

/// A lock was granted that was asked for at `asked`.
pub(crate) fn granted(
    kind: Kind,
    key: &Key,
    asked: Stamp,
    warn: Warn,
    keeper: &Keeper,
    hold: &Arc<Hold>,
) -> Held {
    let now = keeper.now();
    let waited = now.saturating_sub(asked.0);
    #[cfg(feature = "metrics")]
    metrics::histogram!("lockapi_wait_seconds", "kind" => kind.name()).record(waited.as_secs_f64());
    #[cfg(feature = "tracing")]
    {
        tracing::debug!(target: "lockapi", kind = kind.name(), %key, ?waited, "granted");
        if warn.waited.is_some_and(|limit| waited >= limit) {
            tracing::warn!(target: "lockapi", kind = kind.name(), %key, ?waited, "waited long");
        }
    }
    Held {
        kind,
        key: key.clone(),
        since: now,
        warn: warn.held,
        keeper: keeper.clone(),
        hold: Arc::clone(hold),
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let held = self.keeper.now().saturating_sub(self.since);
        let (kind, key, lost) = (self.kind.name(), &self.key, self.hold.is_lost());
        #[cfg(feature = "metrics")]
        metrics::histogram!("lockapi_hold_seconds", "kind" => kind).record(held.as_secs_f64());
        #[cfg(feature = "tracing")]
        {
            tracing::debug!(target: "lockapi", kind, %key, ?held, lost, "given up");
            if self.warn.is_some_and(|limit| held >= limit) {
                tracing::warn!(target: "lockapi", kind, %key, ?held, "held long");
            }
        }
    }
}

/// An attempt found the lock held.
pub(crate) fn contended(kind: Kind) {
    #[cfg(feature = "metrics")]
    metrics::counter!("lockapi_contended_total", "kind" => kind.name()).increment(1);
}

/// Holds were lost.
pub(crate) fn lost(kind: Kind, times: usize) {
    if times == 0 {
        return;
    }
    #[cfg(feature = "metrics")]
    metrics::counter!("lockapi_lost_total", "kind" => kind.name()).increment(times as u64);
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "lockapi", kind = kind.name(), times, "lost");
}

/// A renewal was answered.
pub(crate) fn renewed(key: &str, outcome: Renewal) {
    let name = match outcome {
        Renewal::Done => "done",
        Renewal::Lost => "lost",
        Renewal::Failed => "failed",
    };
    #[cfg(feature = "metrics")]
    metrics::counter!("lockapi_renewals_total", "outcome" => name).increment(1);
    #[cfg(feature = "tracing")]
    match outcome {
        Renewal::Done => tracing::trace!(target: "lockapi", key, "renewed"),
        Renewal::Lost | Renewal::Failed => {
            tracing::warn!(target: "lockapi", key, outcome = name, "not renewed");
        }
    }
}

/// Jobs were claimed.
pub(crate) fn claimed(queue: &str, jobs: usize) {
    #[cfg(feature = "metrics")]
    metrics::counter!("lockapi_claimed_total", "queue" => queue.to_owned()).increment(jobs as u64);
    #[cfg(feature = "tracing")]
    if jobs > 0 {
        tracing::debug!(target: "lockapi", queue, jobs, "claimed");
    }
}

/// A queue was counted.
pub(crate) fn counted(queue: &str, counts: &Statistics) {
    #[cfg(feature = "metrics")]
    for (state, count) in [
        ("ready", counts.ready.count),
        ("running", counts.running.count),
        ("delayed", counts.delayed.count),
        ("dead", counts.dead.count),
    ] {
        // A gauge is a float; the counts stop far below what it holds exactly.
        #[allow(clippy::cast_precision_loss)]
        metrics::gauge!("lockapi_queue_jobs", "queue" => queue.to_owned(), "state" => state)
            .set(count as f64);
    }
    #[cfg(feature = "tracing")]
    {
        let (ready, running) = (counts.ready.count, counts.running.count);
        tracing::debug!(target: "lockapi", queue, ready, running, "counted");
    }
}

/// So many requests travelled in one statement.
pub(crate) fn batch(statement: &'static str, requests: usize) {
    #[cfg(feature = "metrics")]
    {
        // A histogram takes floats; a batch has at most some thousands.
        #[allow(clippy::cast_precision_loss)]
        metrics::histogram!("lockapi_batch_size", "statement" => statement).record(requests as f64);
    }
    #[cfg(feature = "tracing")]
    tracing::trace!(target: "lockapi", statement, requests, "sent");
}
