//! A job that was delivered to a worker.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::operations::Claimed;
use super::{Attempted, Headers, Outcome, Priority, Queue, ResultValue, Settled, Ticket};
use crate::error::{Error, ErrorKind, LOCKED, Result};
use crate::hold::Hold;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Why a delivery can no longer be acknowledged, extended or given back.
pub(crate) const LOST: &str = "the delivery was lost: its job is done or cancelled, or was delivered again, or another server has taken over";

/// One delivery of one job, to be acknowledged.
///
/// Dropping it releases the job at once, in the background; the delivery counts as an attempt, so that
/// a job that makes its workers panic becomes a dead letter.
///
/// # Guarantees
/// Every method acts on this delivery alone: after its lease has expired and the job was delivered
/// again, or another server has taken over, they return `Lost` and change nothing.
#[must_use = "a delivery that is dropped gives its job back"]
pub struct Delivery {
    claimed: Claimed,
    queue: Arc<dyn Queue>,
    hold: Arc<Hold>,
    settled: AtomicBool,
    /// What it is answered when it is dropped.
    dropped: Outcome,
    /// Whether it was acknowledged in a transaction of the program, which may not have ended yet.
    acked_in: AtomicBool,
    /// Whether a transaction was asked to complete the job: nothing else does.
    asked_in: AtomicBool,
    /// How many completions in transactions have an outcome that is not known.
    unknown_in: AtomicU32,
    /// What is stored when it is completed.
    result: Mutex<Option<ResultValue>>,
    /// When the attempt began and ended, by the clock of the queue, in microseconds; 0: not yet.
    began: AtomicU64,
    ended: AtomicU64,
}

impl Delivery {
    /// A delivery that was claimed from `queue`, for backends of other kinds.
    pub fn new(claimed: Claimed, queue: Arc<dyn Queue>) -> Self {
        Self::held(claimed, queue, Arc::default())
    }

    pub(crate) fn held(claimed: Claimed, queue: Arc<dyn Queue>, hold: Arc<Hold>) -> Self {
        let began = AtomicU64::new(since_start(queue.now()));
        Self {
            claimed,
            queue,
            hold,
            settled: AtomicBool::new(false),
            dropped: Outcome::Abandon,
            acked_in: AtomicBool::new(false),
            asked_in: AtomicBool::new(false),
            unknown_in: AtomicU32::new(0),
            result: Mutex::new(None),
            began,
            ended: AtomicU64::new(0),
        }
    }

    /// The same delivery, settled through another handle of its queue.
    pub fn through(mut self, queue: Arc<dyn Queue>) -> Self {
        self.queue = queue;
        self
    }

    /// The number of the job.
    #[must_use]
    pub fn id(&self) -> i64 {
        self.claimed.ticket.id
    }

    /// Names this delivery. Its token is larger than that of every earlier delivery of the job, so
    /// a resource outside the database can refuse smaller ones.
    #[must_use]
    pub fn ticket(&self) -> Ticket {
        self.claimed.ticket
    }

    /// The queue that it came from.
    #[must_use]
    pub fn queue(&self) -> &Arc<dyn Queue> {
        &self.queue
    }

    /// What kind of job it is.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.claimed.name
    }

    /// The payload, as JSON.
    #[must_use]
    pub fn payload(&self) -> &str {
        &self.claimed.payload
    }

    /// Reads the payload.
    ///
    /// # Errors
    /// `Corrupt` when it is not what `T` expects.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T> {
        decode(&self.claimed)
    }

    /// Its headers.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.claimed.headers
    }

    /// The value of a header, whose name is given in any case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers().get(name)
    }

    /// The [group](super::Job::group) that the job is in.
    #[must_use]
    pub fn group(&self) -> Option<&str> {
        self.claimed.group.as_deref()
    }

    /// Which delivery of the job it is, from 1 on.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        u32::try_from(self.claimed.attempt).unwrap_or(u32::MAX)
    }

    /// How often the job is delivered at most.
    #[must_use]
    pub fn max_attempts(&self) -> u32 {
        u32::try_from(self.claimed.max_attempts).unwrap_or(u32::MAX)
    }

    /// Its priority.
    #[must_use]
    pub fn priority(&self) -> Priority {
        Priority::numbered(self.claimed.priority).unwrap_or_default()
    }

    /// When this delivery was due, by the server's clock: attempts after the first are due later.
    #[must_use]
    pub fn run_at(&self) -> SystemTime {
        point(self.claimed.run_at)
    }

    /// When it was pushed, by the server's clock; for the run of a recurring task, when it was
    /// [due](Self::due_at).
    #[must_use]
    pub fn created_at(&self) -> SystemTime {
        point(self.claimed.created_at)
    }

    /// Marks the start of the work on it, if it was claimed [ahead of
    /// that](super::Claim::begun_within); otherwise nothing changes. Returns whether the work may
    /// begin: not if the delivery was given back meanwhile, or is lost.
    #[must_use]
    pub fn begin(&self) -> bool {
        self.queue.begin(self.ticket()) && !self.is_lost()
    }

    /// For the run of a [recurring task](crate::schedule): the time that it was due, by the server's
    /// clock, the same in every attempt. For other jobs: when they were pushed.
    #[must_use]
    pub fn due_at(&self) -> SystemTime {
        point(self.claimed.created_at)
    }

    /// Tells how much of the work is done, from 0 to 1 in millionths, and in words what that is. It does not
    /// block, and may be called as often as the work has steps: once a second at most, the last report of each
    /// delivery of the process is written, all in one statement.
    ///
    /// [`Inspector::job`](crate::admin::Inspector#method.job), lists of jobs and the operator's command show
    /// it, while the job runs and, if it is kept, after it has ended.
    ///
    /// # Guarantees
    /// - A report is never the failure of an attempt. What cannot be written, because the server is away, is
    ///   tried again as long as the delivery is held, unless a later report has replaced it; then it is dropped.
    /// - The report of a delivery that is no longer the latest replaces none and is not shown.
    /// - It waits for no transaction, and no transaction waits for it; what is open when a handler ends is
    ///   written within about a second.
    /// - Reports do not outlive a crash of the server or a fail-over: handlers that still run report again.
    ///
    /// # Errors
    /// `Invalid` for a fraction that is not a number from 0 to 1, and for a note of more than
    /// [`MAX_PROGRESS_NOTE`](super::MAX_PROGRESS_NOTE) bytes or with a NUL; nothing is reported then.
    pub fn progress(&self, fraction: f64, note: &str) -> Result<()> {
        let told = self.queue.report_progress(self.ticket(), fraction, note);
        told.map_err(|error| error.on(format_args!("{} of {}", self.id(), self.queue.name())))
    }

    /// Sets the result of the job: it is stored when this delivery completes the job, with `ack`, `ack_in`, or by the worker whose
    /// handler returns `Ok`, and is kept for [a day](super::QueueOptions::results) unless set otherwise.
    /// [`Queue::result`](crate::Queue#method.result) looks it up, and [`Queue::wait_result`](crate::Queue#method.wait_result) waits
    /// for it. Set again, the last one counts.
    ///
    /// # Guarantees
    /// - It is stored in the statement that completes the job: a job that is seen to be done has its result, and a delivery that
    ///   was lost, failed or was given back leaves none.
    /// - Jobs are delivered at least once: where a handler runs again, because its worker died before the job was completed, the
    ///   result is that of the delivery that completed it.
    ///
    /// # Errors
    /// `Invalid` for a value that cannot be represented in JSON, or has more than [`MAX_RESULT_BYTES`](super::MAX_RESULT_BYTES);
    /// and after `ack_in`, which has stored what was set before. The result is as it was before then. A character that the encoding
    /// of the database does not have is found by the completion, which fails.
    pub fn set_result(&self, value: &(impl Serialize + ?Sized)) -> Result<()> {
        let about = |error: Error| error.on(format_args!("{} of {}", self.id(), self.queue.name()));
        if self.is_acked_in_transaction() {
            let message =
                "the job was acknowledged in a transaction; allowed is to set its result before";
            return Err(about(Error::new(ErrorKind::Invalid, "set_result", message)));
        }
        let value = ResultValue::new(value).map_err(about)?;
        let mut result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        *result = Some(value);
        Ok(())
    }

    /// The result that was set.
    pub(crate) fn result(&self) -> Option<ResultValue> {
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        result.clone()
    }

    /// Whether its lease has expired, or the job was cancelled, or was given back by a worker that had to end.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.hold.is_lost_at(self.queue.now())
    }

    /// Returns once it is lost: another worker may have the job then, or the job was cancelled.
    ///
    /// # Cancel safety
    /// Safe to drop and to call again.
    pub async fn lost(&self) {
        self.hold.lost().await;
    }

    /// Completes the job, with its [result](Self::set_result) if one was set.
    ///
    /// # Cancel safety
    /// When dropped, the outcome is still sent.
    ///
    /// # Errors
    /// `Lost` when the job was delivered again or has ended, or when another server has taken over
    /// since. `TimedOut` while an open transaction has the job locked. `Indeterminate` when the answer never arrived.
    pub fn ack(self) -> impl Future<Output = Result<()>> + Send + use<> {
        let done = self.result().map_or(Outcome::Ack, Outcome::AckWithResult);
        let settling = self.settle("ack", done);
        async move { settling.await.map(drop) }
    }

    /// Fails it: it is delivered again after `after`, at most [`MAX_DELAY`](super::MAX_DELAY), or becomes
    /// a dead letter if this was its last attempt. Returns whether it became one.
    ///
    /// # Cancel safety
    /// When dropped, the outcome is still sent.
    ///
    /// # Errors
    /// As for [`ack`](Self::ack); `Invalid` for a longer time, as if it had been dropped without an
    /// answer.
    #[allow(clippy::needless_pass_by_value, reason = "an error is given away")]
    pub fn nack(
        self,
        error: impl fmt::Display + Send,
        after: Duration,
    ) -> impl Future<Output = Result<bool>> + Send {
        let error = error.to_string();
        let settling = self.settle("nack", Outcome::Nack { error, after });
        async move { Ok(settling.await? == Settled::Dead) }
    }

    /// Fails it for good, without another attempt: it becomes a dead letter.
    ///
    /// # Cancel safety
    /// When dropped, the outcome is still sent.
    ///
    /// # Errors
    /// As for [`ack`](Self::ack).
    #[allow(clippy::needless_pass_by_value, reason = "an error is given away")]
    pub fn reject(
        self,
        error: impl fmt::Display + Send,
    ) -> impl Future<Output = Result<()>> + Send {
        let error = error.to_string();
        let settling = self.settle("reject", Outcome::Reject { error });
        async move { settling.await.map(drop) }
    }

    /// Postpones it: it is delivered again after `time`, at most [`MAX_DELAY`](super::MAX_DELAY), and this
    /// delivery does not count. It was begun in time, so it does not [expire](super::Job::ttl) any more.
    ///
    /// # Cancel safety
    /// When dropped, the outcome is still sent.
    ///
    /// # Errors
    /// As for [`nack`](Self::nack).
    pub fn snooze(self, time: Duration) -> impl Future<Output = Result<()>> + Send + use<> {
        let settling = self.settle("snooze", Outcome::Snooze(time));
        async move { settling.await.map(drop) }
    }

    /// Releases it unfinished: it keeps its position in the queue, and this delivery does not count. It was delivered in time, so it
    /// does not [expire](super::Job::ttl) any more.
    ///
    /// # Cancel safety
    /// When dropped, the outcome is still sent.
    ///
    /// # Errors
    /// As for [`ack`](Self::ack).
    pub fn release(self) -> impl Future<Output = Result<()>> + Send + use<> {
        let settling = self.settle("release", Outcome::Interrupt);
        async move { settling.await.map(drop) }
    }

    /// Keeps it for `lease` from now, which may end earlier than before. One whose lease has ended is kept again, unless somebody
    /// else has had the job, or the queue limits how many of its jobs run; what was told to be [lost](Self::lost) remains so.
    ///
    /// # Cancel safety
    /// When dropped, it may have been extended. The delivery knows: until the answer has come it is held for the shorter of both
    /// times.
    ///
    /// # Errors
    /// `Lost` and `TimedOut` as for [`ack`](Self::ack); `Invalid` for a lease outside of its limits.
    pub async fn extend(&self, lease: Duration) -> Result<()> {
        let extending = self.queue.settle(self.ticket(), Outcome::Extend(lease));
        self.answer("extend", extending.await).map(drop)
    }

    /// Its handler began at this time, by the clock of the queue.
    pub(crate) fn began_at(&self, now: Duration) {
        self.began.store(since_start(now), Ordering::Relaxed);
    }

    /// Its handler ended at this time.
    pub(crate) fn ended_at(&self, now: Duration) {
        self.ended.store(since_start(now), Ordering::Relaxed);
    }

    /// When the attempt began and ended.
    pub(crate) fn ran_from_to(&self) -> (Duration, Duration) {
        let ended = match self.ended.load(Ordering::Relaxed) {
            0 => since_start(self.queue.now()),
            ended => ended,
        };
        let began = self.began.load(Ordering::Relaxed);
        (Duration::from_micros(began), Duration::from_micros(ended))
    }

    /// When the job was due, by the server's clock, in microseconds since 1970.
    pub(crate) fn due(&self) -> i64 {
        self.claimed.run_at
    }

    /// Counts the attempt, if this was the answer to its outcome.
    pub(crate) fn attempted(&self, outcome: &Outcome, settled: Settled) {
        if let Some(how) = Attempted::of(outcome, settled) {
            self.queue.attempted(self, how);
        }
    }

    /// It is given back, whoever has it still.
    pub(crate) fn lose(&self) {
        self.hold.lose();
        self.hold.announce();
    }

    /// Leaves its completion to the caller: when dropped it is not released.
    pub(crate) fn settled_by_caller(&self) {
        self.settled.store(true, Ordering::Release);
    }

    pub(super) fn asked_in_transaction(&self) {
        self.unknown_in.fetch_add(1, Ordering::AcqRel);
        self.asked_in.store(true, Ordering::Release);
    }

    /// The transaction does not complete the job.
    pub(super) fn refused_in_transaction(&self) {
        self.unknown_in.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether a transaction completes the job if it commits, as far as is known.
    pub(crate) fn may_be_completed(&self) -> bool {
        self.is_acked_in_transaction() || self.unknown_in.load(Ordering::Acquire) > 0
    }

    /// Whether a transaction completes the job, or has failed to.
    pub(crate) fn is_left_to_transaction(&self) -> bool {
        self.asked_in.load(Ordering::Acquire)
    }

    pub(super) fn acked_in_transaction(&self) {
        self.acked_in.store(true, Ordering::Release);
    }

    pub(crate) fn is_acked_in_transaction(&self) -> bool {
        self.acked_in.load(Ordering::Acquire)
    }

    /// Sends the outcome. Until it is answered it is what the delivery is answered when it is dropped: of
    /// two that are sent the second changes nothing.
    fn settle(
        mut self,
        operation: &'static str,
        outcome: Outcome,
    ) -> impl Future<Output = Result<Settled>> + Send + use<> {
        let checked = outcome.check();
        if checked.is_ok() {
            self.dropped = outcome.clone();
        }
        self.ended_at(self.queue.now());
        async move {
            let settled = match checked {
                Ok(()) => {
                    let settled = self.queue.settle(self.ticket(), outcome.clone()).await;
                    self.settled_by_caller();
                    if let Ok(settled) = &settled {
                        self.attempted(&outcome, *settled);
                    }
                    settled
                }
                Err(error) => Err(error),
            };
            self.answer(operation, settled)
        }
    }

    fn answer(&self, operation: &'static str, settled: Result<Settled>) -> Result<Settled> {
        let problem = match settled {
            Ok(settled @ (Settled::Done | Settled::Dead)) => return Ok(settled),
            Ok(Settled::Lost) => Error::new(ErrorKind::Lost, operation, LOST),
            Ok(Settled::Locked) => {
                let message = format!("the job is {LOCKED}");
                Error::new(ErrorKind::TimedOut, operation, message)
            }
            Err(error) => error.during(operation),
        };
        Err(problem.on(format_args!("{} of {}", self.id(), self.queue.name())))
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if !*self.settled.get_mut() {
            let outcome = std::mem::replace(&mut self.dropped, Outcome::Abandon);
            let attempted = matches!(outcome, Outcome::Abandon) && !*self.acked_in.get_mut();
            if attempted && !self.is_lost() {
                self.attempted(&outcome, Settled::Done);
            }
            self.queue.settle_later(self.ticket(), outcome);
        }
        // Whatever became of it, it is not extended any more.
        self.hold.release();
    }
}

/// Without the payload.
impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("queue", &self.queue.name())
            .field("name", &self.name())
            .field("ticket", &self.ticket())
            .field("attempt", &self.attempt())
            .field("lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}

fn since_start(now: Duration) -> u64 {
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX).max(1)
}

/// A point in time that the server returned in microseconds since 1970.
pub(crate) fn point(micros: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(micros.max(0).unsigned_abs())
}

pub(super) fn decode<T: DeserializeOwned>(job: &Claimed) -> Result<T> {
    serde_json::from_str(&job.payload).map_err(|error| {
        // The error may quote the payload.
        let message = format!(
            "the payload cannot be read as the expected type: {:?} error at line {}, column {}",
            error.classify(),
            error.line(),
            error.column()
        );
        Error::new(ErrorKind::Corrupt, "decode", message).on(&job.name)
    })
}
