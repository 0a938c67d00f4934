//! How a handle uses a queue.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::operations::{DELETED, FOR_EVER};
use super::{Job, MAX_DELAY, MAX_PAYLOAD_BYTES, MAX_RESULT_RETENTION, MIN_RESULT_RETENTION};
use crate::error::{Error, ErrorKind, Result};
use crate::key::check_name;
use crate::lease::micros;

/// How this handle uses a queue.
///
/// ```
/// use std::time::Duration;
/// use lockapi::queue::QueueOptions;
///
/// let options = QueueOptions::default().archive(Duration::from_secs(24 * 3600)).max_payload(64 << 10);
/// ```
#[derive(Clone, Debug)]
pub struct QueueOptions {
    pub(crate) archive: bool,
    pub(crate) keep: Duration,
    pub(crate) keep_dead: Option<Duration>,
    pub(crate) keep_results: Duration,
    pub(crate) max_payload: usize,
    pub(crate) notify_on_commit: bool,
    before_push: Option<BeforePush>,
}

/// What is done with each job before it is pushed.
#[derive(Clone)]
struct BeforePush(Arc<dyn Fn(Job) -> Result<Job> + Send + Sync>);

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            archive: false,
            keep: Duration::from_secs(7 * 24 * 3600),
            keep_dead: Some(Duration::from_secs(30 * 24 * 3600)),
            keep_results: Duration::from_secs(24 * 3600),
            max_payload: 1 << 20,
            notify_on_commit: true,
            before_push: None,
        }
    }
}

impl QueueOptions {
    /// Keeps jobs that are completed through this handle in the archive for this long; otherwise they
    /// are deleted. Cancelled jobs are kept for this long as well, for a week by default. The retention
    /// is stored with each job: other handles and programs do not change it.
    #[must_use]
    pub fn archive(mut self, keep: Duration) -> Self {
        self.archive = true;
        self.keep = keep;
        self
    }

    /// Keeps jobs that become dead letters through this handle for this long, for 30 days by default;
    /// `None` keeps them until they are redriven or discarded. A job that a sweep moves there, because
    /// it [expired](super::Job::ttl), is kept for the longest time of the handles of its queue in the
    /// process that sweeps; if that has none, for 30 days.
    #[must_use]
    pub fn dead_letters(mut self, keep: impl Into<Option<Duration>>) -> Self {
        self.keep_dead = keep.into();
        self
    }

    /// Keeps [results](super::Delivery::set_result) of jobs that are completed through this handle for this long, for a day by
    /// default; [`MIN_RESULT_RETENTION`] to [`MAX_RESULT_RETENTION`], by the server's clock. It is stored with each result: other
    /// handles and programs do not change it.
    #[must_use]
    pub fn results(mut self, keep: Duration) -> Self {
        self.keep_results = keep;
        self
    }

    /// The most bytes of a payload, 1 MiB by default, at most [`MAX_PAYLOAD_BYTES`].
    #[must_use]
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.max_payload = bytes;
        self
    }

    /// Whether the commit of a transaction that has pushed jobs notifies workers; `true` by default.
    /// With `false` they find the jobs when they poll, once a second.
    ///
    /// PostgreSQL serializes the commits of all transactions of a cluster that notify, each with its
    /// wait for the disk. Set it to `false` if hundreds of transactions a second push jobs, or do other
    /// durable work.
    #[must_use]
    pub fn notify_on_commit(mut self, notify: bool) -> Self {
        self.notify_on_commit = notify;
        self
    }

    /// Runs `change` on each job that is pushed through this handle, also in a transaction: to set the
    /// header that every job of the program has, to check what jobs of the program must have, or to write a
    /// log. If it returns an error, nothing of the push happens, and the push returns that error. Several
    /// run in the order in which they were set.
    ///
    /// Jobs that the scheduler or `lockapi.push` in SQL push are not changed.
    ///
    /// ```
    /// use lockapi::queue::{Job, QueueOptions};
    /// use lockapi::{Error, ErrorKind};
    ///
    /// let options = QueueOptions::default().before_push(|job: Job| {
    ///     if job.headers().get("tenant").is_none() {
    ///         return Err(Error::new(ErrorKind::Invalid, "push", "a job without a tenant"));
    ///     }
    ///     Ok(job.header("host", "app-7"))
    /// });
    /// ```
    #[must_use]
    pub fn before_push(
        mut self,
        change: impl Fn(Job) -> Result<Job> + Send + Sync + 'static,
    ) -> Self {
        let change: Arc<dyn Fn(Job) -> Result<Job> + Send + Sync> = match self.before_push.take() {
            None => Arc::new(change),
            Some(BeforePush(first)) => Arc::new(move |job| change(first(job)?)),
        };
        self.before_push = Some(BeforePush(change));
        self
    }

    /// The jobs that are pushed for these.
    pub(crate) fn pushed<'a>(&self, jobs: &'a [Job]) -> Result<Cow<'a, [Job]>> {
        match &self.before_push {
            None => Ok(Cow::Borrowed(jobs)),
            Some(BeforePush(change)) => {
                let changed = jobs.iter().map(|job| change(job.clone()));
                changed.collect::<Result<Vec<_>>>().map(Cow::Owned)
            }
        }
    }

    /// How long completed jobs are kept, in the form that statements use.
    pub(crate) fn keep(&self) -> i64 {
        if self.archive {
            micros(self.keep)
        } else {
            DELETED
        }
    }

    /// How long dead letters are kept, in the form that statements use.
    pub(crate) fn keep_dead(&self) -> i64 {
        self.keep_dead.map_or(FOR_EVER, micros)
    }

    /// How long results are kept, in the form that statements use.
    pub(crate) fn keep_results(&self) -> i64 {
        micros(self.keep_results)
    }

    pub(crate) fn check(&self, name: &str) -> Result<()> {
        check_name("name of the queue", name, 1)?;
        let invalid = |message| Err(Error::new(ErrorKind::Invalid, "check", message));
        if !(1..=MAX_PAYLOAD_BYTES).contains(&self.max_payload) {
            return invalid(format!(
                "max_payload of {} bytes; allowed are 1 to {MAX_PAYLOAD_BYTES} bytes",
                self.max_payload
            ));
        }
        if !(MIN_RESULT_RETENTION..=MAX_RESULT_RETENTION).contains(&self.keep_results) {
            return invalid(format!(
                "a retention of results of {:?}; allowed are {MIN_RESULT_RETENTION:?} to 30 days",
                self.keep_results
            ));
        }
        let keep = self.keep.max(self.keep_dead.unwrap_or_default());
        if keep > MAX_DELAY {
            return invalid(format!(
                "a retention of {keep:?}; allowed are at most 10 years"
            ));
        }
        Ok(())
    }
}

impl fmt::Debug for BeforePush {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BeforePush").finish_non_exhaustive()
    }
}
