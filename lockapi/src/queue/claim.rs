//! How jobs are claimed.

use std::sync::Arc;
use std::time::Duration;

use super::{Delivery, MAX_DELAY, ResultValue};
use crate::error::{Error, ErrorKind, Result};
use crate::key::check_name;

/// The most jobs in one claim.
pub const MAX_CLAIM: usize = 1000;
/// The most names in one claim.
pub const MAX_NAMES: usize = 1000;
/// The shortest lease of a delivery.
pub const MIN_LEASE: Duration = Duration::from_millis(100);
/// The longest lease of a delivery.
pub const MAX_LEASE: Duration = Duration::from_secs(24 * 3600);

/// What to claim, and for how long.
///
/// ```
/// use std::time::Duration;
/// use lockapi::queue::Claim;
///
/// let claim = Claim::new(10).lease(Duration::from_secs(60)).wait(Duration::from_secs(5)).worker("mailer-3");
/// ```
#[derive(Clone, Debug)]
pub struct Claim {
    pub(crate) most: usize,
    pub(crate) lease: Duration,
    pub(crate) wait: Duration,
    pub(crate) renewed: bool,
    pub(crate) begun_within: Option<Duration>,
    pub(crate) worker: Option<String>,
    pub(crate) names: Arc<[String]>,
    /// Whether its caller asks again.
    pub(crate) waiting: Waiting,
}

/// Whether a caller asks again, and has asked before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// It asks once.
    No,
    /// It asks again whenever something may be there, as others of its process may do.
    First,
    /// It has asked before, and asks again.
    Again,
    /// It has asked before, and does not ask again.
    Last,
    /// A worker that has asked before, and that asks for itself.
    Worker,
}

impl Claim {
    /// Claims at most this number of jobs, 1 to [`MAX_CLAIM`], each for half a minute, without waiting.
    /// Fewer are claimed if their payloads are large: 8 MiB in all, but one job at least.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most,
            lease: Duration::from_secs(30),
            wait: Duration::ZERO,
            renewed: true,
            begun_within: None,
            worker: None,
            names: Arc::default(),
            waiting: Waiting::No,
        }
    }

    /// How long a job is kept from others unless it is extended, [`MIN_LEASE`] to [`MAX_LEASE`]. If
    /// its worker dies it is delivered again after this time.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long to wait for the first job.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Leaves extending the lease to the caller. Otherwise it is extended in the background for as
    /// long as the [`Delivery`] exists, each time a third of it has passed.
    #[must_use]
    pub fn extended_by_hand(mut self) -> Self {
        self.renewed = false;
        self
    }

    /// Claims ahead of the work: a delivery is extended only once its [`begin`](Delivery::begin)
    /// was called, and is given back without counting an attempt if that does not happen within
    /// this time, or within a third of its lease.
    #[must_use]
    pub fn begun_within(mut self, time: Duration) -> Self {
        self.begun_within = Some(time);
        self
    }

    /// Names the worker for readers; the default is the name of the host and a random part, the same
    /// for all of the process. At most 255 bytes.
    #[must_use]
    pub fn worker(mut self, worker: impl Into<String>) -> Self {
        self.worker = Some(worker.into());
        self
    }

    /// Takes only jobs of these names, at most [`MAX_NAMES`]; an empty list means all names. Other jobs
    /// wait for a worker that handles them. Each claim has to read those that are due: if there are
    /// many, use a separate queue for them.
    #[must_use]
    pub fn names(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let mut names: Vec<_> = names.into_iter().map(Into::into).collect();
        names.sort_unstable();
        names.dedup();
        self.names = names.into();
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, "claim", message));
        if !(1..=MAX_CLAIM).contains(&self.most) {
            return invalid(format!(
                "a claim of {} jobs; allowed are 1 to {MAX_CLAIM}",
                self.most
            ));
        }
        check_lease(self.lease)?;
        if self.names.len() > MAX_NAMES {
            return invalid(format!(
                "a claim of {} names of jobs; allowed are at most {MAX_NAMES}",
                self.names.len()
            ));
        }
        for name in &*self.names {
            check_name("name of a job", name, 1)?;
        }
        if let Some(worker) = &self.worker {
            check_name("worker", worker, 0)?;
        }
        Ok(())
    }

    /// Whether it need not be sent while the process knows that a limit holds jobs back.
    pub(crate) fn is_repeated(&self) -> bool {
        !matches!(self.waiting, Waiting::No | Waiting::First)
    }

    /// Whether it may be sent together with those of other callers.
    pub(crate) fn waits(&self) -> bool {
        !matches!(self.waiting, Waiting::No | Waiting::Worker)
    }

    pub(crate) fn worker_name(&self) -> String {
        self.worker
            .clone()
            .unwrap_or_else(|| crate::random::process_name().to_owned())
    }
}

pub(crate) fn check_lease(lease: Duration) -> Result<()> {
    if lease < MIN_LEASE || lease > MAX_LEASE {
        let message = format!("a lease of {lease:?}; allowed are {MIN_LEASE:?} to 24 hours");
        return Err(Error::new(ErrorKind::Invalid, "claim", message));
    }
    Ok(())
}

/// Identifies one delivery of one job, and no later delivery of the same job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    /// The number of the job.
    pub id: i64,
    /// The token of the delivery, larger than that of every earlier delivery of the job.
    pub token: i64,
}

/// The answer to an [exchange](super::Queue::exchange).
#[derive(Debug)]
#[non_exhaustive]
pub struct Exchange {
    /// For each ticket that was passed, whether it was still that of the latest delivery.
    /// `TimedOut`: an open transaction has locked the job; it is not completed. Other errors as for
    /// an [`ack`](Delivery::ack).
    pub acked: Vec<Result<bool>>,
    /// What was claimed.
    pub deliveries: Vec<Delivery>,
    /// Whether there may be more to claim immediately.
    pub more: bool,
    /// The value to pass to [`arrival`](super::Queue::arrival).
    pub seen: u64,
}

impl Exchange {
    /// An answer, for backends of other kinds.
    #[must_use]
    pub fn new(acked: Vec<Result<bool>>, deliveries: Vec<Delivery>, more: bool, seen: u64) -> Self {
        Self {
            acked,
            deliveries,
            more,
            seen,
        }
    }
}

/// What is to become of a delivery.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// It is done.
    Ack,
    /// It is done, with this result.
    AckWithResult(ResultValue),
    /// It failed: it is delivered again after `after`, or becomes a dead letter if that was the
    /// last attempt.
    Nack {
        /// Why; at most [`MAX_ERROR_BYTES`](super::MAX_ERROR_BYTES), the rest is cut off.
        error: String,
        /// The time to wait.
        after: Duration,
    },
    /// It failed for good: it becomes a dead letter.
    Reject {
        /// Why.
        error: String,
    },
    /// Not now: it is delivered again after this time, and this delivery does not count. It was begun in time, so it
    /// does not [expire](super::Job::ttl) any more.
    Snooze(Duration),
    /// Nobody could begin it: it is delivered again after this time, unless it expires before, and this delivery does not
    /// count.
    Defer(Duration),
    /// Nobody has begun it: it goes back to its place in the queue, and this delivery does not count.
    Release,
    /// It was begun, and is not finished: it goes back to its place in the queue, and this delivery does not count. It does not
    /// [expire](super::Job::ttl) any more.
    Interrupt,
    /// It is released, and this delivery counts: its owner dropped it without an outcome.
    Abandon,
    /// It is kept for this long from now.
    Extend(Duration),
}

impl Outcome {
    /// The same with an error that every database can store, if it has another one.
    pub(crate) fn in_ascii(&self) -> Option<Self> {
        let mut outcome = self.clone();
        let (Self::Nack { error, .. } | Self::Reject { error }) = &mut outcome else {
            return None;
        };
        let is_plain = |it: char| it.is_ascii() && it != '\0';
        if error.chars().all(is_plain) {
            return None;
        }
        let mut plain = String::with_capacity(error.len());
        for it in error.chars() {
            if is_plain(it) {
                plain.push(it);
            } else {
                plain.extend(it.escape_unicode());
            }
        }
        *error = plain;
        Some(outcome)
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self::Extend(lease) => check_lease(*lease).map_err(|error| error.during("extend")),
            Self::Nack { after: time, .. } | Self::Snooze(time) | Self::Defer(time)
                if *time > MAX_DELAY =>
            {
                let message = format!("a delay of {time:?}; allowed are at most 10 years");
                Err(Error::new(ErrorKind::Invalid, "settle", message))
            }
            _ => Ok(()),
        }
    }
}

/// The state of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeliveryState {
    /// It is the latest of its job, whether or not its lease has ended.
    Current,
    /// Its job waits, is delivered to another worker, or has ended without it: completed by
    /// another, cancelled, or a dead letter.
    Superseded,
    /// It completed its job.
    Done,
    /// Its job has ended and left no record: it was done, by this delivery or by a later one, or a
    /// record of its end was deleted since.
    Ended,
}

/// What became of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settled {
    /// The outcome was applied.
    Done,
    /// It is a dead letter.
    Dead,
    /// Nothing: the delivery is not the latest of its job, the job has ended, or another server has taken over.
    Lost,
    /// Nothing: a transaction has locked the job.
    Locked,
}
