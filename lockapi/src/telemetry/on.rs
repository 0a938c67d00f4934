//! What is reported to `tracing`, `metrics` and `opentelemetry`, each if its feature is on.
#![allow(
    unused_variables,
    unused_imports,
    unused_mut,
    dead_code,
    clippy::unused_self,
    reason = "some of the features may be off"
)]

use std::collections::BTreeMap;
use std::fmt::Display;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "tracing")]
use tracing::{Instrument, Span, debug_span, field, info_span, trace_span};

#[cfg(feature = "tracing")]
use super::overdue::{Overdue, OverdueKind};
use super::{Answer, Fault, Kind, Renewal, Subject};
#[cfg(feature = "opentelemetry")]
use super::{
    instruments,
    traces::{self, Processing},
};
use crate::engine::Timer;
use crate::error::{ErrorKind, Failure, Result};
use crate::hold::Hold;
use crate::key::Key;
use crate::queue::{Delivery, Headers, Statistics};
use crate::worker::Ending;

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Lease => "lease",
            Self::Semaphore => "semaphore",
            Self::Election => "election",
            Self::LeasedMutex => "leased_mutex",
            Self::RateLimiter => "rate_limiter",
            Self::Job => "job",
        }
    }
}

impl Renewal {
    fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Lost => "lost",
            Self::Failed => "failed",
        }
    }
}

impl Ending {
    fn name(&self) -> &'static str {
        match self {
            Self::Done | Self::Committed { .. } => "done",
            Self::Failed { .. } => "failed",
            Self::Rejected { .. } => "rejected",
            Self::Snoozed(_) => "snoozed",
            Self::Lost => "lost",
            Self::Released => "released",
        }
    }
}

/// Runs what is a subscriber's or a recorder's: a panic in it changes nothing of what the program does.
fn contained(report: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(report)) {
        // Whatever that was, it is not dropped.
        std::mem::forget(panic);
    }
}

/// A span, or none where the subscriber panics.
#[cfg(feature = "tracing")]
fn span(make: impl FnOnce() -> Span) -> Span {
    catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(|panic| {
        std::mem::forget(panic);
        Span::none()
    })
}

/// A point on the clock of the backend.
#[derive(Clone, Copy)]
pub(crate) struct Stamp(Duration);

impl Stamp {
    pub(crate) fn take(timer: &Timer) -> Self {
        Self(timer.now())
    }
}

/// Tells when the guard that it belongs to is gone.
pub(crate) struct Held {
    kind: Kind,
    key: Key,
    since: Duration,
    timer: Timer,
    hold: Arc<Hold>,
    #[cfg(feature = "tracing")]
    span: Span,
    #[cfg(feature = "tracing")]
    _overdue: Option<Overdue>,
}

impl Held {
    /// The hold ends now, and not when the release has been answered.
    pub(crate) fn end(self) {
        drop(self);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        contained(|| self.tell());
    }
}

impl Held {
    fn tell(&self) {
        let held = self.timer.now().saturating_sub(self.since);
        let (kind, key, lost) = (self.kind.name(), &self.key, self.hold.is_lost());
        #[cfg(feature = "metrics")]
        metrics::histogram!("lockapi_hold_seconds", "kind" => kind).record(held.as_secs_f64());
        #[cfg(feature = "tracing")]
        {
            self.span.record("lost", lost);
            tracing::debug!(target: "lockapi", kind, %key, ?held, lost, "given up");
        }
    }
}

/// The run of a handler. Its span is entered for as long as the handler is polled.
#[derive(Clone)]
pub(crate) struct Handling {
    #[cfg(feature = "tracing")]
    span: Span,
    #[cfg(feature = "opentelemetry")]
    processing: Processing,
}

impl Handling {
    pub(crate) fn of(job: &Delivery) -> Self {
        #[cfg(feature = "opentelemetry")]
        let processing = Processing::of(job);
        #[cfg(feature = "opentelemetry")]
        let _attached = processing.attach();
        Self {
            #[cfg(feature = "tracing")]
            span: info_span!(
                target: "lockapi",
                "job",
                namespace = job.queue().namespace(),
                queue = job.queue().name(),
                name = job.name(),
                id = job.id(),
                attempt = job.attempt(),
                outcome = field::Empty,
            ),
            #[cfg(feature = "opentelemetry")]
            processing: processing.clone(),
        }
    }

    /// The run that this is called in.
    pub(crate) fn current() -> Self {
        Self {
            #[cfg(feature = "tracing")]
            span: Span::current(),
            #[cfg(feature = "opentelemetry")]
            processing: Processing::current(),
        }
    }

    pub(crate) fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        #[cfg(feature = "opentelemetry")]
        let _attached = self.processing.attach();
        #[cfg(feature = "tracing")]
        let _entered = self.span.enter();
        work()
    }

    pub(crate) fn around<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        #[cfg(feature = "tracing")]
        let work = work.instrument(self.span.clone());
        #[cfg(feature = "opentelemetry")]
        let work = self.processing.around(work);
        work
    }

    pub(crate) fn ended(&self, job: &Delivery, ending: &Ending, took: Duration) {
        contained(|| {
            let outcome = ending.name();
            #[cfg(feature = "metrics")]
            {
                let queue = job.queue().name().to_owned();
                metrics::histogram!("lockapi_job_seconds", "queue" => queue, "outcome" => outcome)
                    .record(took.as_secs_f64());
            }
            #[cfg(feature = "tracing")]
            self.span.record("outcome", outcome);
            #[cfg(feature = "opentelemetry")]
            {
                let error = self.processing.ended(outcome);
                instruments::processed(job.queue().name(), error, took);
            }
        });
    }
}

/// A job is pushed with these headers.
pub(crate) fn pushes(queue: &str, headers: &mut Headers) {
    #[cfg(feature = "opentelemetry")]
    {
        traces::inject(headers);
        instruments::sent(queue);
    }
}

/// A call that acquires; tells how it ended when it is dropped.
struct Acquiring {
    kind: Kind,
    outcome: &'static str,
    #[cfg(feature = "tracing")]
    span: Span,
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        contained(|| self.tell());
    }
}

impl Acquiring {
    fn tell(&self) {
        let (kind, outcome) = (self.kind.name(), self.outcome);
        #[cfg(feature = "metrics")]
        metrics::counter!("lockapi_acquisitions_total", "kind" => kind, "outcome" => outcome)
            .increment(1);
        #[cfg(feature = "tracing")]
        self.span.record("outcome", outcome);
    }
}

/// Runs a call that acquires something.
pub(crate) async fn acquiring<T: Answer>(
    of: Subject<'_>,
    operation: &'static str,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut call = Acquiring {
        kind: of.kind,
        outcome: "left",
        #[cfg(feature = "tracing")]
        span: span(|| {
            debug_span!(
                target: "lockapi",
                "acquire",
                kind = of.kind.name(),
                operation,
                namespace = of.namespace,
                key = %of.key,
                outcome = field::Empty,
            )
        }),
    };
    #[cfg(feature = "tracing")]
    let work = work.instrument(call.span.clone());
    #[cfg(feature = "tracing")]
    let _overdue = Overdue::watch(OverdueKind::Wait, of);
    let answer = work.await;
    call.outcome = match &answer {
        Ok(answer) if answer.is_granted() => "granted",
        Ok(_) => "refused",
        Err(error) if error.kind() == ErrorKind::TimedOut => "refused",
        Err(_) => "failed",
    };
    answer
}

/// Something was granted that was requested at `since`.
pub(crate) fn waited(of: Subject<'_>, since: Stamp) {
    contained(|| {
        let waited = of.timer.now().saturating_sub(since.0);
        let (kind, key) = (of.kind.name(), of.key);
        #[cfg(feature = "metrics")]
        metrics::histogram!("lockapi_wait_seconds", "kind" => kind).record(waited.as_secs_f64());
        #[cfg(feature = "tracing")]
        tracing::debug!(target: "lockapi", kind, %key, ?waited, "granted");
    });
}

/// As [`waited`], for what is held from now on.
pub(crate) fn granted(of: Subject<'_>, since: Stamp, hold: &Arc<Hold>) -> Held {
    waited(of, since);
    #[cfg(feature = "tracing")]
    let span = span(|| {
        let span = debug_span!(
            target: "lockapi",
            parent: None,
            "hold",
            kind = of.kind.name(),
            namespace = of.namespace,
            key = %of.key,
            lost = field::Empty,
        );
        span.follows_from(Span::current());
        span
    });
    Held {
        kind: of.kind,
        key: of.key.clone(),
        since: of.timer.now(),
        timer: of.timer.clone(),
        hold: Arc::clone(hold),
        #[cfg(feature = "tracing")]
        span,
        #[cfg(feature = "tracing")]
        _overdue: Overdue::watch(OverdueKind::Hold, of),
    }
}

/// An attempt found it held.
pub(crate) fn contended(kind: Kind) {
    contained(|| {
        #[cfg(feature = "metrics")]
        metrics::counter!("lockapi_contended_total", "kind" => kind.name()).increment(1);
    });
}

/// Holds were lost.
pub(crate) fn fault(fault: Fault) {
    contained(|| {
        let fault = match fault {
            Fault::WorkerEnded => "worker_ended",
            Fault::WaiterUnopened => "waiter_unopened",
            Fault::Panicked => "panicked",
            Fault::ProgressUnwritten => "progress_unwritten",
            Fault::HistoryUnwritten => "history_unwritten",
        };
        #[cfg(feature = "metrics")]
        metrics::counter!("lockapi_faults_total", "fault" => fault).increment(1);
        #[cfg(feature = "tracing")]
        tracing::warn!(target: "lockapi", fault, "fault");
    });
}

pub(crate) fn lost(kinds: impl Iterator<Item = Kind>) {
    contained(|| {
        let mut lost = BTreeMap::<&'static str, u64>::new();
        for kind in kinds {
            *lost.entry(kind.name()).or_default() += 1;
        }
        for (kind, times) in lost {
            #[cfg(feature = "metrics")]
            metrics::counter!("lockapi_lost_total", "kind" => kind).increment(times);
            #[cfg(feature = "tracing")]
            tracing::warn!(target: "lockapi", kind, times, "lost");
        }
    });
}

/// A renewal was answered.
pub(crate) fn renewed(kind: Kind, name: &dyn Display, outcome: Renewal) {
    contained(|| {
        let (kind, outcome_name) = (kind.name(), outcome.name());
        #[cfg(feature = "metrics")]
        metrics::counter!("lockapi_renewals_total", "kind" => kind, "outcome" => outcome_name)
            .increment(1);
        #[cfg(feature = "tracing")]
        match outcome {
            Renewal::Done => tracing::trace!(target: "lockapi", kind, %name, "renewed"),
            Renewal::Lost | Renewal::Failed => {
                tracing::warn!(target: "lockapi", kind, %name, outcome = outcome_name, "not renewed");
            }
        }
    });
}

/// Tells a person of something that went wrong.
pub(crate) fn warn(what: std::fmt::Arguments<'_>) {
    contained(|| {
        #[cfg(feature = "tracing")]
        tracing::warn!(target: "lockapi", "{what}");
        #[cfg(not(feature = "tracing"))]
        super::write(what);
    });
}

/// A rate limit was asked.
pub(crate) fn decided(key: &Key, admitted: bool) {
    contained(|| {
        let outcome = if admitted { "admitted" } else { "refused" };
        #[cfg(feature = "metrics")]
        metrics::counter!("lockapi_decisions_total", "outcome" => outcome).increment(1);
        #[cfg(feature = "tracing")]
        if !admitted {
            tracing::debug!(target: "lockapi", %key, "refused");
        }
    });
}

/// Jobs were claimed.
pub(crate) fn claimed(queue: &str, jobs: usize) {
    contained(|| {
        #[cfg(feature = "metrics")]
        metrics::counter!("lockapi_claimed_total", "queue" => queue.to_owned())
            .increment(jobs as u64);
        #[cfg(feature = "opentelemetry")]
        instruments::consumed(queue, jobs);
        #[cfg(feature = "tracing")]
        if jobs > 0 {
            tracing::debug!(target: "lockapi", queue, jobs, "claimed");
        }
    });
}

/// A queue was counted.
pub(crate) fn counted(queue: &str, counts: &Statistics) {
    contained(|| {
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
    });
}

/// Runs a statement in which so many requests travel.
pub(crate) async fn statement<T>(
    statement: &'static str,
    requests: usize,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    #[cfg(feature = "metrics")]
    {
        // A histogram takes floats; a batch has at most some thousands.
        #[allow(clippy::cast_precision_loss)]
        contained(|| {
            metrics::histogram!("lockapi_batch_size", "statement" => statement)
                .record(requests as f64);
        });
    }
    #[cfg(feature = "tracing")]
    let span = span(|| {
        trace_span!(
            target: "lockapi",
            parent: None,
            "statement",
            statement,
            requests,
            failed = field::Empty,
        )
    });
    #[cfg(feature = "tracing")]
    let work = work.instrument(span.clone());
    let answer = work.await;
    #[cfg(feature = "tracing")]
    contained(|| {
        span.record("failed", answer.is_err());
    });
    answer
}

/// Tells the recorder what the metrics mean.
pub(crate) fn describe() {
    #[cfg(feature = "metrics")]
    {
        use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
        describe_histogram!(
            "lockapi_wait_seconds",
            Unit::Seconds,
            "Time from a call until its grant."
        );
        describe_histogram!(
            "lockapi_hold_seconds",
            Unit::Seconds,
            "Time for which something was held."
        );
        describe_counter!(
            "lockapi_acquisitions_total",
            Unit::Count,
            "Calls that acquire, by outcome."
        );
        describe_counter!(
            "lockapi_contended_total",
            Unit::Count,
            "Attempts that found another holder."
        );
        describe_counter!("lockapi_lost_total", Unit::Count, "Holds that were lost.");
        describe_counter!(
            "lockapi_renewals_total",
            Unit::Count,
            "Renewals, by outcome."
        );
        describe_counter!(
            "lockapi_faults_total",
            Unit::Count,
            "Faults in the background that were recovered from."
        );
        describe_counter!(
            "lockapi_decisions_total",
            Unit::Count,
            "Decisions of rate limits, by outcome."
        );
        describe_counter!(
            "lockapi_claimed_total",
            Unit::Count,
            "Jobs that were claimed."
        );
        describe_histogram!(
            "lockapi_job_seconds",
            Unit::Seconds,
            "Time for which handlers of jobs ran."
        );
        describe_gauge!(
            "lockapi_queue_jobs",
            Unit::Count,
            "Jobs of a queue when they were last counted."
        );
        describe_histogram!(
            "lockapi_batch_size",
            Unit::Count,
            "Requests that were sent in one statement."
        );
    }
}
