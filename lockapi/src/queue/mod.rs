//! Jobs that wait in the database until a worker runs them.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::{Error, ErrorKind, Result};

mod claim;
mod dead_letter;
mod delivery;
mod groups;
mod headers;
mod history;
pub(crate) mod in_transaction;
mod job;
mod limit;
pub(crate) mod model;
pub(crate) mod operations;
mod options;
mod pause;
mod progress;
mod result;
mod runs;
mod statistics;

pub(crate) use claim::Waiting;
pub use claim::{
    Claim, DeliveryState, Exchange, MAX_CLAIM, MAX_LEASE, MAX_NAMES, MIN_LEASE, Outcome, Settled,
    Ticket,
};
pub use dead_letter::{AttemptError, DeadLetter};
pub use delivery::Delivery;
pub(crate) use delivery::point;
pub(crate) use groups::checked_limit;
pub use groups::{Groups, MAX_GROUP_LIMIT};
pub use headers::{
    Headers, MAX_HEADER_BYTES, MAX_HEADER_NAME, MAX_HEADER_VALUE, MAX_HEADERS, MAX_TAG,
};
pub(crate) use headers::{TAGS, check_tag};
#[cfg(not(feature = "suite"))]
pub(crate) use history::HistorySums;
#[cfg(feature = "suite")]
pub use history::HistorySums;
pub use history::{Attempted, HistoryPoint, HistoryStep};
pub use in_transaction::Taken;
pub(crate) use in_transaction::topic;
pub use job::{How, Job, JobKind, MAX_DELAY, MAX_PUSH, MAX_PUSH_BYTES, Priority, Pushed, Unique};
pub(crate) use job::{RUN_KEY, check_at, check_attempts, check_json, check_payload, micros_of};
pub use limit::{CurrentLimit, JobLimit, MAX_RUNNING};
pub(crate) use model::Jobs;
pub(crate) use operations::{
    Ack, AckWithResult, Admit, Admitted, Cancel, Claimed, CompleteAndClaim, CompletedAndClaimed,
    CountJobs, CountRunning, DELETED, Discard, ExpireJobs, FOR_EVER, Floor, FoldHistory,
    HistoryKey, HistoryPart, HistoryPartKey, Keys, Limited, Name, NewJob, Purge, Push, PushKeyed,
    PushTogether, ReadDeadLetters, ReadDeliveryState, ReadQueueLimit, ReadResult, ReadUnhandled,
    RecordHistory, Redrive, Report, RunningPart, SearchBelowFloors, SearchRange, SearchResult,
    SetGroupLimit, SetGroups, SetNamePaused, SetPaused, SetQueueLimit, Settle, SweepHistory,
    SweepProgress, SweepQueues, SweepResults, attempts,
};
pub use options::QueueOptions;
pub use pause::{Drained, Pause};
pub(crate) use progress::checked_report;
pub use progress::{MAX_PROGRESS_NOTE, Progress};
pub use result::{
    JobResult, MAX_RESULT_BYTES, MAX_RESULT_RETENTION, MIN_RESULT_RETENTION, ResultValue,
};
pub(crate) use runs::RunState;
pub use statistics::{Statistics, Tally, Unhandled};

/// The most bytes of an error that are kept.
pub const MAX_ERROR_BYTES: usize = 8192;
/// The largest limit on the bytes of a payload that a queue may be given.
pub const MAX_PAYLOAD_BYTES: usize = 16 << 20;

/// The interval at which a waiting claim polls, approximately.
pub(crate) const POLL: Duration = Duration::from_secs(1);

/// A queue of jobs that any number of programs push to and claim from.
///
/// # Guarantees
/// - A push that was acknowledged is on disk: neither a crash of the server nor the death of any
///   process loses it.
/// - **At least once.** A job is delivered until a delivery of it is acknowledged or its attempts
///   are used up. A worker that dies, hangs or is disconnected loses its delivery when the lease
///   expires, by the server's clock. If that clock is set ahead, leases of deliveries expire early
///   by the step, and the job is delivered again; if it is set back, they last longer by the step.
/// - A delivery that is no longer the latest changes nothing: each has a token of its own.
/// - A job that is acknowledged in the transaction of its effects ([`ack_in`](Delivery::ack_in)) takes
///   effect exactly once.
/// - A job that was completed has the [result](Delivery::set_result) of the delivery that completed it: both are in one
///   statement, so a delivery that was lost leaves none, and a result that was acknowledged is on disk.
/// - **Groups.** At most as many jobs of a [group](Job::group) are delivered at the same time as its limit
///   says, in all programs together; in an [ordered](Groups::ordered) queue one after the other, in the
///   order of their numbers, also those that have to be tried again.
/// - **Limits.** No more jobs of a queue are delivered at the same time, in all programs together, than its
///   [limit](Queue::set_limit) says, and none faster than its rate.
/// - Higher priorities go first, and within a priority the jobs that have been due for longer; low
///   ones are not starved. Workers that claim at the same time get different jobs, so jobs may
///   finish in any order.
///
/// # Cancel safety
/// Every future may be dropped at any point. A push that was under way may have happened. Jobs that
/// were claimed for a dropped call are released without counting an attempt.
///
/// Implemented by this crate; see [`Backend`](crate::Backend#implementing-it).
#[async_trait]
pub trait Queue: Send + Sync + fmt::Debug {
    /// Its name.
    fn name(&self) -> &str;

    /// The namespace that it is in.
    fn namespace(&self) -> &str;

    /// How this handle uses it.
    fn options(&self) -> &QueueOptions;

    /// Pushes jobs, all of them or none, at most [`MAX_PUSH`] jobs of [`MAX_PUSH_BYTES`] in all.
    ///
    /// # Guarantees
    /// The numbers of new jobs increase in the order of the list, with keys or without: in this order those of an
    /// [ordered](Groups::ordered) group run.
    ///
    /// # Errors
    /// `Invalid` for jobs outside of the limits, before anything is sent. `Unavailable`: not
    /// pushed. `TimedOut`: not pushed, because a transaction that has pushed the same key stayed
    /// open for [`BackendOptions::timeout`](crate::BackendOptions::timeout). `Indeterminate`: the
    /// outcome is unknown; a push with an idempotency key is retried first, and can be repeated.
    async fn push_all(&self, jobs: Vec<Job>) -> Result<Vec<Pushed>>;

    /// Notes that a transaction of the caller uses the queue, so that its old rows are swept in the
    /// background.
    ///
    /// Programs need not call it: [`push_in`](crate::Queue#method.push_in) and
    /// [`take_in`](crate::Queue#method.take_in) do.
    fn used(&self);

    /// Marks that a transaction of the caller found fewer jobs than it wanted, so that jobs of groups are
    /// admitted in the background.
    ///
    /// Programs need not call it: [`take_in`](crate::Queue#method.take_in) does.
    fn missed(&self);

    /// Completes deliveries and claims jobs, in one round trip and one transaction, without
    /// waiting; `None` claims nothing.
    ///
    /// Programs call [`Queue::claim`](crate::Queue#method.claim) and [`Delivery::ack`]; workers are
    /// built on this method.
    ///
    /// # Errors
    /// `Invalid` for a claim outside of its limits. `Capacity` when some 500 claims of the process wait already, of which those
    /// of callers that wait for jobs are one.
    /// `Unavailable`: neither happened. `Indeterminate`: the outcome is unknown; jobs that were claimed are found by the next claims
    /// of this process, and the attempt counts once; where there is no further claim they are
    /// delivered again when their leases have expired. Deliveries that could not be completed are
    /// still extended while they exist.
    async fn exchange(&self, acks: Vec<Ticket>, claim: Option<&Claim>) -> Result<Exchange>;

    /// Returns when there may be jobs to claim that did not exist at the exchange that returned `seen`,
    /// at the latest after `at_most`.
    ///
    /// It returns at once if a job has arrived since. A job that becomes due, a job that is pushed in
    /// this process, and, where the backend receives notifications, a job that is pushed elsewhere end
    /// the wait.
    async fn arrival(&self, seen: u64, at_most: Duration);

    /// Decides what becomes of a delivery.
    ///
    /// # Errors
    /// `Invalid` for a time outside of its limits, `Unavailable`, `Indeterminate`.
    async fn settle(&self, ticket: Ticket, outcome: Outcome) -> Result<Settled>;

    /// Decides what becomes of a delivery, in the background: for destructors. If the server cannot
    /// be reached the lease expires by itself.
    fn settle_later(&self, ticket: Ticket, outcome: Outcome);

    /// Reports whether a delivery is still the latest of its job, or has completed it. A
    /// transaction that has not ended changes nothing: a delivery that is acknowledged in it is
    /// still `Current`.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn delivery_state(&self, ticket: Ticket) -> Result<DeliveryState>;

    /// Marks the start of work on a delivery of a claim with [`begun_within`](Claim::begun_within):
    /// it is extended from now on. Returns whether work may begin; it may not if the delivery was
    /// given back.
    fn begin(&self, ticket: Ticket) -> bool;

    /// Reports how far the work on a delivery is, in the background; it does not block.
    ///
    /// Programs call [`Delivery::progress`](crate::queue::Delivery::progress).
    ///
    /// # Errors
    /// `Invalid` as for that.
    fn report_progress(&self, ticket: Ticket, fraction: f64, note: &str) -> Result<()>;

    /// Counts an attempt that has ended in the history of the queue, in memory; it does not block.
    ///
    /// Programs need not call it: workers and deliveries do, for what they know the outcome of.
    fn attempted(&self, job: &Delivery, how: Attempted);

    /// Looks up what became of a job.
    ///
    /// Programs call [`Queue::result`](crate::Queue#method.result).
    ///
    /// # Errors
    /// `Unavailable`.
    async fn read_result(&self, id: i64) -> Result<JobResult<ResultValue>>;

    /// Waits until a job has ended, for this time at most.
    ///
    /// Programs call [`Queue::wait_result`](crate::Queue#method.wait_result).
    ///
    /// # Errors
    /// As for that.
    async fn await_result(&self, id: i64, at_most: Duration) -> Result<JobResult<ResultValue>>;

    /// Returns after this time, by the clock that is used for leases: for workers, which need no
    /// particular runtime.
    async fn sleep(&self, time: Duration);

    /// Reads that clock, counted from an arbitrary start.
    ///
    /// Programs need not call it: workers do, for what has to be done at a time.
    fn now(&self) -> Duration;

    /// Pauses it, or resumes it with `None`: a paused queue accepts jobs and delivers none, also to programs that
    /// are started later. Jobs that were delivered before run to their end.
    ///
    /// # Errors
    /// `Invalid` for a time of zero or more than [`MAX_DELAY`], `Unavailable`, `Indeterminate`.
    async fn set_paused(&self, pause: Option<Pause>) -> Result<()>;

    /// Pauses the jobs of one name, or resumes them with `None`: they wait, also those that are pushed later, and those of
    /// other names are delivered. Those that were delivered before run to their end. A pause costs no attempt and writes
    /// one row, however many jobs wait.
    ///
    /// A job of a [group](Job::group) that is next in its group keeps its place there although its name is paused: in an
    /// [ordered](Groups::ordered) queue its group waits, and otherwise the group has one job less at a time.
    ///
    /// # Errors
    /// `Invalid` for a name outside of the limits of names, and as for [`set_paused`](Queue::set_paused).
    async fn set_name_paused(&self, name: &str, pause: Option<Pause>) -> Result<()>;

    /// Pauses it, and waits until no job of it runs, for `timeout` at most: before a deployment or maintenance.
    /// Jobs that wait stay. Returns how many still run. It stays paused, as [`set_paused`](Queue::set_paused) says.
    ///
    /// A job runs until it is settled or its lease has ended, and as long as a transaction that has taken it
    /// ([`take_in`](crate::Queue#method.take_in)) is open. A look at the queue examines 10,000 jobs at most; there is
    /// one each second, and where many jobs wait some at once. While the server cannot be reached, it goes on
    /// waiting.
    ///
    /// # Guarantees
    /// When it returns a complete [`Drained`], no job of the queue runs, and none begins to run before somebody resumes the
    /// queue or the time of the pause has passed. Transactions that might have claimed before the pause are
    /// waited for, for [`BackendOptions::timeout`](crate::BackendOptions::timeout) at most. A transaction in REPEATABLE READ or
    /// stricter that began before it sees the queue as it was, and may still take jobs of it.
    ///
    /// # Cancel safety
    /// When dropped, the queue may be paused or not, and stays so.
    ///
    /// # Errors
    /// `Invalid` as for [`set_paused`](Queue::set_paused). `Unavailable`, `Indeterminate`, `TimedOut`: the server could not be
    /// reached at the end of the timeout; the queue may be paused. Such an error may come later than the timeout, by
    /// [`BackendOptions::timeout`](crate::BackendOptions::timeout).
    async fn drain(&self, pause: Pause, timeout: Duration) -> Result<Drained>;

    /// Sets how the [groups](Job::group) of the queue are limited, for all programs: it is stored in the
    /// database. A limit that is raised admits more jobs at once; one that is lowered interrupts no job:
    /// those that were admitted before still run, and no further ones are until there is room. Permits of a rate that were taken
    /// stay taken, as far as the new rate can owe so many.
    ///
    /// # Errors
    /// `Invalid` for options outside of their limits, `Unavailable`, `Indeterminate`.
    async fn set_groups(&self, groups: Groups) -> Result<()>;

    /// Gives one group a limit of its own; what it does not set is as in other groups, and with `None` all is. In an ordered queue
    /// the jobs of every group run one after the other all the same. A limit of 0 running jobs pauses the group: its jobs wait and
    /// other groups go on. Those that had been admitted, no more than its limit, still run.
    ///
    /// Where there is more to do than workers, groups get their turns in proportion to these limits: it is their weight, too.
    ///
    /// # Errors
    /// `Invalid` for a group or a limit outside of the limits, and for a limit of nothing; `Unavailable`, `Indeterminate`.
    async fn set_group_limit(&self, group: &str, limit: Option<JobLimit>) -> Result<()>;

    /// Limits how many jobs of the queue run at once, and how often one is claimed, for all programs: it is stored in the
    /// database, and takes the place of an earlier limit. Jobs that are held back stay where they are, and no attempt is counted. A
    /// limit that is raised lets jobs go at once; one that is lowered interrupts no job, and none begins until there is room.
    ///
    /// A delivery holds a place until it is settled, or until its lease has ended: then it is not extended any more, and is lost.
    /// Jobs that a worker has claimed ahead hold places as well.
    ///
    /// # Errors
    /// `Invalid` for a limit outside of its limits, and for a limit of nothing. `TimedOut`: a claim, or a setting that was not
    /// committed, has locked the limit for [`BackendOptions::timeout`](crate::BackendOptions::timeout). `Unavailable`, `Indeterminate`.
    async fn set_limit(&self, limit: JobLimit) -> Result<()>;

    /// Takes the limit of the queue away.
    ///
    /// # Errors
    /// As for [`set_limit`](Queue::set_limit).
    async fn clear_limit(&self) -> Result<()>;

    /// Reads the limit of the queue, and how far it is used; `None` if it has none.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn limit(&self) -> Result<Option<CurrentLimit>>;

    /// Cancels jobs, waiting or running, and returns the numbers of those that were there. A
    /// running job loses its delivery; its worker learns of it with the next extension of the
    /// lease. Many are cancelled in parts, 1,000 in each transaction.
    ///
    /// # Errors
    /// `Unavailable`, `Indeterminate`: the error says how many were cancelled before, if there were any.
    /// `TimedOut`: an open transaction had one of them locked for
    /// [`BackendOptions::timeout`](crate::BackendOptions::timeout); the others are cancelled.
    async fn cancel(&self, ids: Vec<i64>) -> Result<Vec<i64>>;

    /// Deletes all jobs that wait, in parts of 1,000 in the order in which they are claimed, and returns how many. A job
    /// that is pushed or made due meanwhile, or for which there is room in its group by then, may stay.
    ///
    /// # Errors
    /// `Unavailable`, `Indeterminate`: the error says how many were deleted before, if there were any; after `Indeterminate` there may be
    /// more.
    async fn purge(&self) -> Result<u64>;

    /// Counts its jobs, at most 5,000 of each priority and state.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn statistics(&self) -> Result<Statistics>;

    /// Lists the jobs that are due and waiting and have none of these names, among the first 1,000
    /// of each priority: the jobs without a handler, if these are the names that are handled.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn unhandled(&self, names: Vec<String>) -> Result<Vec<Unhandled>>;

    /// Reads dead letters, the oldest first: at most `most` (up to 1,000) of those numbered above
    /// `after`.
    ///
    /// # Errors
    /// `Invalid` for more than 1,000, `Unavailable`.
    async fn dead_letters(&self, after: i64, most: usize) -> Result<Vec<DeadLetter>>;

    /// Puts dead letters back into the queue, with all their attempts left: those with these numbers,
    /// or all if no numbers are given, each once, in parts of 1,000. Returns how many; a job whose unique key is taken stays a
    /// dead letter, and so may one that becomes a dead letter meanwhile.
    ///
    /// # Errors
    /// `Unavailable`, `Indeterminate`: the error says how many were put back before, if there were any; after `Indeterminate` there may be
    /// more. `TimedOut`: the tasks of some runs are being fired, or locked.
    async fn redrive(&self, ids: Vec<i64>) -> Result<u64>;

    /// Deletes dead letters: those with these numbers, or all if no numbers are given. Returns how
    /// many.
    ///
    /// # Errors
    /// As for [`purge`](Self::purge).
    async fn discard(&self, ids: Vec<i64>) -> Result<u64>;
}

impl dyn Queue + '_ {
    /// Pushes a job.
    ///
    /// # Errors
    /// As for [`push_all`](Queue::push_all).
    pub async fn push(&self, job: Job) -> Result<Pushed> {
        let pushed = self.push_all(vec![job]).await?;
        pushed.first().copied().ok_or_else(|| {
            let message = "a push of one job has no answer";
            Error::new(ErrorKind::Corrupt, "push", message).on(self.name())
        })
    }

    /// Pushes a job of a [kind](JobKind).
    ///
    /// # Errors
    /// As for [`push_all`](Queue::push_all).
    pub async fn push_kind<K: JobKind + Sync>(&self, job: &K) -> Result<Pushed> {
        self.push(Job::of(job)?).await
    }

    /// Claims jobs; returns none when there are none within the claim's waiting time. If others get what there is,
    /// it goes on for a second after that time.
    ///
    /// While it waits it also polls about once a second, once for all callers of the process that wait for
    /// the same, for jobs that become due again after another process has lost them. While an old snapshot is held, and thousands of deleted jobs cannot be vacuumed,
    /// such jobs are found in the background, and a single claim may not find them yet.
    ///
    /// # Cancel safety
    /// When dropped, nothing stays claimed.
    ///
    /// # Errors
    /// As for [`exchange`](Queue::exchange).
    pub async fn claim(&self, claim: &Claim) -> Result<Vec<Delivery>> {
        let until = self.now().saturating_add(claim.wait);
        let mut claim = Cow::Borrowed(claim);
        if !claim.wait.is_zero() {
            claim.to_mut().waiting = Waiting::First;
        }
        loop {
            if claim.waiting == Waiting::Again && until <= self.now() {
                claim.to_mut().waiting = Waiting::Last;
            }
            let asked = self.exchange(Vec::new(), Some(&claim)).await;
            let left = until.saturating_sub(self.now());
            let exchange = match asked {
                // Too many ask at once in this process: it goes on waiting, and has waited if it could ask before.
                Err(error) if error.is_backlog() && !left.is_zero() => {
                    let pause = left.min(POLL.mul_f64(0.25 + fastrand::f64() / 2.0));
                    self.sleep(pause).await;
                    continue;
                }
                Err(error) if error.is_backlog() && claim.is_repeated() => {
                    return Ok(Vec::new());
                }
                asked => asked?,
            };
            // What there is more of may go to others, again and again.
            let is_over =
                left.is_zero() && (!exchange.more || until.saturating_add(POLL) <= self.now());
            if !exchange.deliveries.is_empty() || is_over {
                return Ok(exchange.deliveries);
            }
            if claim.waiting == Waiting::First {
                claim.to_mut().waiting = Waiting::Again;
            }
            if !exchange.more {
                // Nobody tells of leases that end and of jobs that others give back.
                let wait = left.min(POLL.mul_f64(0.75 + fastrand::f64() / 2.0));
                self.arrival(exchange.seen, wait).await;
            }
        }
    }

    /// Stops delivering jobs, until it is resumed.
    ///
    /// # Errors
    /// As for [`set_paused`](Queue::set_paused).
    pub async fn pause(&self) -> Result<()> {
        self.set_paused(Some(Pause::UntilResumed)).await
    }

    /// Stops delivering jobs for a time, which the server's clock measures. It needs nobody to resume it.
    ///
    /// # Errors
    /// As for [`set_paused`](Queue::set_paused).
    pub async fn pause_for(&self, time: Duration) -> Result<()> {
        self.set_paused(Some(Pause::For(time))).await
    }

    /// Stops delivering jobs of one name, until they are resumed or for a time.
    ///
    /// # Errors
    /// As for [`set_name_paused`](Queue::set_name_paused).
    pub async fn pause_name(&self, name: &str, pause: Pause) -> Result<()> {
        self.set_name_paused(name, Some(pause)).await
    }

    /// Delivers jobs of one name again.
    ///
    /// # Errors
    /// As for [`set_name_paused`](Queue::set_name_paused).
    pub async fn resume_name(&self, name: &str) -> Result<()> {
        self.set_name_paused(name, None).await
    }

    /// Delivers jobs again.
    ///
    /// # Errors
    /// As for [`set_paused`](Queue::set_paused).
    pub async fn resume(&self) -> Result<()> {
        self.set_paused(None).await
    }
}
