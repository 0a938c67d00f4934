//! What a worker reports when it has no observer, and the containment of panics of observers.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context as Waiting, Poll};
use std::time::{Duration, Instant};

use super::attempt::panic_message;
use super::observe::{Ending, Observe};
use crate::error::Error;
use crate::queue::{Delivery, Unhandled};
use crate::sync::Mutex;

/// The number of lines that are written in each [`PERIOD`]; the rest are only counted.
const LINES: u32 = 10;
const PERIOD: Duration = Duration::from_secs(10);

/// The observer of a worker. A panic in it ends only that call.
#[derive(Clone)]
pub(super) struct Observer {
    set: Option<Arc<dyn Observe>>,
    report: Arc<Report>,
}

impl Observer {
    pub(super) fn reporting() -> Self {
        Self {
            set: None,
            report: Arc::default(),
        }
    }

    pub(super) fn set(&mut self, observer: Arc<dyn Observe>) {
        self.set = Some(observer);
    }

    /// Foreign code has panicked, and this says which.
    pub(super) fn panicked(&self, whose: &str, panic: Box<dyn std::any::Any + Send>) {
        let message = panic_message(&*panic).to_owned();
        drop_quietly(panic);
        self.report
            .warn(format_args!("{whose} panicked: {message}"));
    }

    fn notify(&self, notify: impl FnOnce(&dyn Observe)) {
        let Some(observer) = &self.set else {
            notify(&*self.report);
            return;
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| notify(&**observer))) {
            self.panicked("the observer of a worker", panic);
        }
    }
}

impl Observe for Observer {
    fn claimed(&self, jobs: usize) {
        self.notify(|observer| observer.claimed(jobs));
    }

    fn started(&self, job: &Delivery) {
        self.notify(|observer| observer.started(job));
    }

    fn finished(&self, job: &Delivery, ending: &Ending, took: Duration) {
        self.notify(|observer| observer.finished(job, ending, took));
    }

    fn dropped(&self, job: &Delivery) {
        self.notify(|observer| observer.dropped(job));
    }

    fn unhandled(&self, queue: &str, jobs: &Unhandled) {
        self.notify(|observer| observer.unhandled(queue, jobs));
    }

    fn failed(&self, error: &Error) {
        self.notify(|observer| observer.failed(error));
    }
}

/// Drops what foreign code has made, whose destructor may panic.
pub(super) fn drop_quietly<T>(value: T) {
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(value)));
    if let Err(panic) = dropped {
        // Whatever that was, it is not dropped again.
        std::mem::forget(panic);
    }
}

/// A future of foreign code, whose destructor may panic wherever it is dropped: a collection that drops
/// several would leave the others behind.
pub(super) struct Quiet<T>(Option<Pin<Box<dyn Future<Output = T> + Send>>>);

impl<T> Quiet<T> {
    pub(super) fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Some(Box::pin(work)))
    }
}

impl<T> Future for Quiet<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Waiting<'_>) -> Poll<T> {
        match &mut self.0 {
            Some(work) => work.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }
}

impl<T> Drop for Quiet<T> {
    fn drop(&mut self) {
        drop_quietly(self.0.take());
    }
}

/// Reports failures: as events of `tracing` at WARN, or on standard error without that feature; at most
/// ten in ten seconds. It is the default observer of a worker.
///
/// The errors of a handler may quote its payload, so they are in the database and not in the
/// report, unless [`with_errors`](Self::with_errors) is set.
///
/// ```
/// # use std::sync::Arc;
/// use lockapi::worker::{Report, Worker};
/// # fn worker(mails: Arc<dyn lockapi::Queue>) -> Worker {
/// Worker::new(mails).observe(Report::default().with_errors())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Report {
    errors: bool,
    written: Mutex<Written>,
}

#[derive(Debug, Default)]
struct Written {
    since: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl Written {
    /// Whether one more line may be written, and how many were left out before it.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        let over = |since: Instant| now.saturating_duration_since(since) >= PERIOD;
        if self.since.is_none_or(over) {
            self.since = Some(now);
            self.lines = 0;
        }
        if self.lines == LINES {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

impl Report {
    /// Includes the errors of handlers.
    #[must_use]
    pub fn with_errors(mut self) -> Self {
        self.errors = true;
        self
    }

    fn quoted<'a>(&self, error: &'a str) -> &'a str {
        if self.errors {
            error
        } else {
            "its error is stored with it"
        }
    }

    fn warn(&self, what: fmt::Arguments<'_>) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(left_out) = written.admit(Instant::now()) else {
            return;
        };
        drop(written);
        crate::telemetry::warn(what);
        if left_out > 0 {
            crate::telemetry::warn(format_args!("{left_out} earlier warnings were left out"));
        }
    }
}

impl Observe for Report {
    fn finished(&self, job: &Delivery, ending: &Ending, _: Duration) {
        let (id, name, queue) = (job.id(), job.name(), job.queue().name());
        let (attempt, most) = (job.attempt(), job.max_attempts());
        match ending {
            Ending::Failed { error, .. } if attempt >= most => self.warn(format_args!(
                "job {id} ({name}) of queue {queue} failed in attempt {attempt} of {most} and is a dead letter: {}",
                self.quoted(error)
            )),
            Ending::Failed { error, after } => self.warn(format_args!(
                "job {id} ({name}) of queue {queue} failed in attempt {attempt} of {most}, pause {after:?}: {}",
                self.quoted(error)
            )),
            Ending::Rejected { error } => self.warn(format_args!(
                "job {id} ({name}) of queue {queue} was rejected: {}",
                self.quoted(error)
            )),
            Ending::Committed { error } => self.warn(format_args!(
                "job {id} ({name}) of queue {queue} is done, but its handler failed afterwards: {}",
                self.quoted(error)
            )),
            Ending::Lost => self.warn(format_args!(
                "job {id} ({name}) of queue {queue} was lost during attempt {attempt}"
            )),
            Ending::Done | Ending::Snoozed(_) | Ending::Released => {}
        }
    }

    fn dropped(&self, job: &Delivery) {
        let (id, name, queue) = (job.id(), job.name(), job.queue().name());
        self.warn(format_args!(
            "the handler of job {id} ({name}) of queue {queue} was dropped before its end: is the runtime there on which it was spawned?"
        ));
    }

    fn unhandled(&self, queue: &str, jobs: &Unhandled) {
        let Unhandled { name, jobs, waited } = jobs;
        self.warn(format_args!(
            "{jobs} jobs named {name:?} wait in queue {queue}, the first for {waited:?}: this worker has no handler for them"
        ));
    }

    fn failed(&self, error: &Error) {
        self.warn(format_args!("a worker could not reach its queue: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_limited_and_tell_what_they_left_out() {
        let (mut written, start) = (Written::default(), Instant::now());
        let admitted = (0..100).filter(|_| written.admit(start).is_some());
        assert_eq!(admitted.count(), usize::try_from(LINES).unwrap());
        assert_eq!(written.admit(start + PERIOD), Some(90));
        assert_eq!(written.admit(start + PERIOD), Some(0));
    }
}
