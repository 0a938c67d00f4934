//! Shows holders and waiters, and lets an operator act on them.
//!
//! An [`Inspector`] reads, an [`Operator`] acts, and each of its actions is in an audit log. In psql the
//! views `lockapi.lock_view`, `wait_view`, `lease_view`, `running_view` and the table `lockapi.audit` show
//! the same.
//!
//! To the server an advisory lock is a number. The program that uses it records its name, and since when it
//! is held or waited for, in the background, once that has lasted for half a second. A lock that is held for
//! less writes nothing, and is shown by its number unless its name was recorded before.
//!
//! ```
//! # async fn example() -> lockapi::Result<()> {
//! use lockapi::admin::Filter;
//! use lockapi::memory::Database;
//!
//! let backend = Database::new().connect().await?;
//! let guard = backend.mutex("reports/daily")?.lock().await?;
//! let held = backend.inspector().locks(&Filter::key("reports/daily")).await?;
//! assert_eq!(held[0].name, "reports/daily");
//! guard.unlock().await?;
//! # Ok(())
//! # }
//! # lockapi::blocking::block_on(example()).unwrap();
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;

use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::queue::{HistoryPoint, HistoryStep};

mod edit;
pub(crate) mod examine;
mod filter;
mod jobs;
mod levels;
pub(crate) mod model;
pub(crate) mod operations;
mod priority;

pub use crate::mutex::LockMode;

pub use edit::JobEdit;
pub(crate) use edit::Seen;
pub use examine::{
    EXPECTED, ExaminedConnection, Finding, Reached, Severity, clock, examine, reach, watch_leases,
};
pub use filter::Filter;
pub(crate) use jobs::{EXAMINED, check_page};
pub use jobs::{
    FoundQueue, JobDetails, JobFilter, JobPage, JobPlace, JobState, ListedJob, MAX_PAGE,
    MAX_PAYLOAD_CHARS, MatchedJobs, PausedName,
};
pub use levels::{LimitLevel, WorkerNumber};
pub(crate) use model::Notes;
pub(crate) use operations::{
    Blocker, CancelJobs, Edit, EditJobs, Edited, ForceRelease, JobMatch, ListAudit, ListJobs,
    ListLeases, ListLimits, ListLocks, ListPausedNames, ListQueues, ListRunning, ListSchedulers,
    ListWaits, ListWorkers, Note, NotedLock, ReadHistory, ReadJob, Record, SweepNotes, Terminate,
    Unblock,
};
pub(crate) use priority::Shared;
pub use priority::{Priority, PriorityScope, Report, SignalOutcome, SignalledBlocker};

/// The most entries of one answer.
pub const MAX_ENTRIES: usize = 10_000;
/// The longest reason of an operator, in bytes.
pub const MAX_REASON_BYTES: usize = 1000;

/// The longest action of an operator, in bytes.
const MAX_ACTION_BYTES: usize = 63;
/// The longest target of an action, in bytes.
const MAX_TARGET_BYTES: usize = 4000;

/// Checks what is to be recorded.
pub(crate) fn check_act(action: &str, target: &str) -> Result<()> {
    for (what, text, most) in [
        ("an action", action, MAX_ACTION_BYTES),
        ("a target", target, MAX_TARGET_BYTES),
    ] {
        if text.is_empty() || text.len() > most || text.contains('\0') {
            let bytes = text.len();
            let message = format!("{what} of {bytes} bytes; allowed are 1 to {most} without NUL");
            return Err(Error::new(ErrorKind::Invalid, "check", message));
        }
    }
    Ok(())
}

/// Checks the reason of an operator.
pub(crate) fn check_reason(reason: &str) -> Result<()> {
    if reason.is_empty() || reason.len() > MAX_REASON_BYTES || reason.contains('\0') {
        let message = format!(
            "a reason of {} bytes; allowed are 1 to {MAX_REASON_BYTES} without NUL",
            reason.len()
        );
        return Err(Error::new(ErrorKind::Invalid, "check", message));
    }
    Ok(())
}

/// Who holds an advisory lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldLock {
    /// Namespace of its name; `None` for what has no name.
    pub namespace: Option<String>,
    /// Its name as tables store it, or its number: `#42`, `#7,42`.
    pub name: String,
    /// How it is held.
    pub mode: LockMode,
    /// The name that the program gave itself; `None` if no mutex holds it.
    pub owner: Option<String>,
    /// The application name of the session.
    pub application: Option<String>,
    /// The role of the session.
    pub username: Option<String>,
    /// The server's number of the session.
    pub pid: Option<i64>,
    /// The holder's fencing token, once it is noted.
    pub fence: Option<i64>,
    /// For how long, once it is noted.
    pub held_for: Option<Duration>,
}

/// Who holds a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldLease {
    /// Its namespace.
    pub namespace: String,
    /// Its key as tables store it.
    pub key: String,
    /// 0 of a lease; 1 and more of a permit, -1 of a leader, -2 of a leased mutex.
    pub slot: i64,
    /// The name that the owner gave itself.
    pub owner: String,
    /// The data that the holder stored for readers.
    pub data: String,
    /// The holder's fencing token.
    pub fence: i64,
    /// For how long.
    pub held_for: Duration,
    /// How long it is still held unless it is renewed.
    pub remaining: Duration,
}

/// Who waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// Namespace of the lock's name; `None` for what has no name.
    pub namespace: Option<String>,
    /// The lock: an advisory lock by name or number, a table, or what kind it is.
    pub name: String,
    /// The mode it is asked for in, as the server calls it; `None` for a wait within a program.
    pub mode: Option<String>,
    /// The name that the program gave itself; `None` if it does not wait for a mutex.
    pub owner: Option<String>,
    /// The application name of the session.
    pub application: Option<String>,
    /// The role of the session.
    pub username: Option<String>,
    /// The server's number of the session; `None` for a wait within a program.
    pub pid: Option<i64>,
    /// The statement that waits, as far as the role may see it.
    pub statement: Option<String>,
    /// For how long.
    pub waits_for: Option<Duration>,
    /// The sessions that block it.
    pub blockers: Vec<Blocking>,
}

/// A session that blocks another.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blocking {
    /// The server's number of the session.
    pub pid: i64,
    /// Its application name.
    pub application: Option<String>,
    /// Its role.
    pub username: Option<String>,
    /// What it does, such as `idle in transaction`.
    pub state: Option<String>,
    /// Its latest statement, as far as the role may see it.
    pub statement: Option<String>,
    /// How old its transaction is.
    pub transaction_age: Option<Duration>,
}

/// A job that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunningJob {
    /// Its number.
    pub id: i64,
    /// Its namespace.
    pub namespace: String,
    /// Its queue.
    pub queue: String,
    /// What kind it is.
    pub name: String,
    /// The name that the worker gave itself.
    pub worker: String,
    /// Which attempt it is.
    pub attempt: i64,
    /// For how long.
    pub runs_for: Duration,
    /// How long its lease lasts unless it is extended.
    pub lease_left: Duration,
}

/// How often a lock was not free for callers of one backend, since that was connected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contention {
    /// Its key as tables store it.
    pub key: String,
    /// Whether it is a lease, the permits of a semaphore, a leadership or a leased mutex of this key;
    /// otherwise it is a mutex or a lock that readers share.
    pub leased: bool,
    /// How often it was granted after a wait.
    pub waits: u64,
    /// How long these waits were together.
    pub waited: Duration,
    /// How often a mutex was passed on within the process, without the server; these are waits too.
    pub hand_overs: u64,
    /// How often a call that does not wait found it held.
    pub refusals: u64,
    /// How often it was not granted in time.
    pub timeouts: u64,
}

/// What an operator did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditEntry {
    /// Its number; later ones are larger.
    pub id: i64,
    /// When, by the server's clock.
    pub at: SystemTime,
    /// The role that did it.
    pub by_user: String,
    /// The application name of the session that did it.
    pub application: String,
    /// Namespace of the backend that did it.
    pub namespace: String,
    /// `release lease`, `terminate session`, `cancel statement` or `cancel job`, or what was
    /// [recorded](Operator::record).
    pub action: String,
    /// To what.
    pub target: String,
    /// Why.
    pub reason: String,
}

/// A session that was terminated.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TerminatedSession {
    /// The server's number of the session.
    pub pid: i64,
    /// Its application name.
    pub application: String,
    /// Its role.
    pub username: String,
}

/// Reads who holds and who waits for what.
///
/// # Guarantees
/// It only reads, on the connection of jobs, except for [`contention`](Self::contention). Answers show the
/// state of a moment ago.
///
/// # Cancel safety
/// All methods may be dropped at any point.
///
/// # Errors
/// `Invalid` for a filter outside of its limits, `Unavailable`.
///
/// Implemented by this crate; see [`Backend`](crate::Backend#implementing-it).
#[async_trait]
pub trait Inspector: Send + Sync + fmt::Debug {
    /// Advisory locks that are held, by namespace and name.
    async fn locks(&self, filter: &Filter) -> Result<Vec<HeldLock>>;

    /// Leases that are held, by key and namespace. The row of a lease stays for a day after its end, and 500,000 rows of all
    /// namespaces are examined at most.
    ///
    /// # Errors
    /// `Capacity` where there are more rows; ask for [one key](Filter::key).
    async fn leases(&self, filter: &Filter) -> Result<Vec<HeldLease>>;

    /// Waiters for locks and the sessions that block them, the longest wait first. Waits for leases are not
    /// listed: these waiters poll, and the server does not know them. In the backend's own namespace these
    /// are waits for mutexes; [everywhere](Filter::everywhere), for any lock of the server. Their statements are read unless
    /// the filter is [without](Filter::without_statements) them.
    async fn waiters(&self, filter: &Filter) -> Result<Vec<Waiter>>;

    /// Jobs that run. No index contains only these: of [one queue](Filter::queue) the first due jobs of each
    /// priority are examined, as many as the limit; of all queues the first 50 of each, and as many as the
    /// limit where at least half of the 50 run.
    async fn running(&self, filter: &Filter) -> Result<Vec<RunningJob>>;

    /// How often locks were not free for the callers of this backend, by key, the longest waited for first.
    /// Nothing is sent: each process has counters of its own, and [everywhere](Filter::everywhere) makes no
    /// difference. A lock that was always free is not counted. Of more than 10,000 keys the least contended
    /// are forgotten, but not while a handle of theirs is open.
    ///
    /// # Errors
    /// `Invalid` for a filter outside of its limits.
    fn contention(&self, filter: &Filter) -> Result<Vec<Contention>>;

    /// What operators did, the latest first: among the latest 20,000 entries of all namespaces.
    async fn audit(&self, filter: &Filter) -> Result<Vec<AuditEntry>>;

    /// Jobs of a queue, of all that wait or run or in a state, page by page: those that wait or run in the order in which they are
    /// claimed, those that ended by their numbers, the latest first. Payloads are not read.
    ///
    /// For a page 5,000 jobs are examined at most, however many there are; of what was completed or
    /// cancelled these are of all queues, because no index knows them.
    async fn jobs(&self, filter: &JobFilter) -> Result<JobPage>;

    /// A job of the namespace with its attempts, whether it waits, runs or has ended; its payload and headers only
    /// if they are asked for. `None` if there is none: a job that is completed is deleted, unless its queue
    /// keeps it.
    async fn job(&self, id: i64, payload: bool) -> Result<Option<JobDetails>>;

    /// Queues that have jobs or dead letters, or were paused or resumed, by namespace and name: at most as many as the
    /// filter says of those after the namespace and the name of another, which need not exist.
    async fn queues(&self, filter: &Filter, after: Option<(&str, &str)>)
    -> Result<Vec<FoundQueue>>;

    /// Schedulers of the namespace that have tasks, in the order of their names: at most `most` (up to
    /// [`MAX_PAGE`]) of those after `after`.
    async fn schedulers(&self, after: &str, most: usize) -> Result<Vec<String>>;

    /// Names of jobs that are [paused](crate::Queue::set_name_paused) in a queue of the namespace, in their order: at
    /// most `most` (up to [`MAX_PAGE`]).
    async fn paused_names(&self, queue: &str, most: usize) -> Result<Vec<PausedName>>;

    /// What became of the attempts at jobs of a queue of the namespace, by the minute or by the hour, the oldest first: of one
    /// name of jobs, or of all together. Minutes and hours in which no attempt ended are left out, and the latest is not over.
    ///
    /// Programs count in memory what their workers and deliveries learn the outcome of, and write it once a minute, when the backend
    /// is [closed](crate::Backend::close), and not when they are killed; so the latest two minutes are incomplete. Of what was
    /// acknowledged in a transaction only workers know whether that was committed. Jobs that expired, and those whose last lease
    /// ended without an answer, are dead letters without an attempt that is counted.
    ///
    /// A program tells the first 100 names of jobs apart in a queue, and 1,000 in all; others are counted together, under the empty
    /// name. At most 20,000 rows are read, the latest first: that is all, as long as a queue has no more than 100 names.
    async fn history(
        &self,
        queue: &str,
        name: Option<&str>,
        step: HistoryStep,
    ) -> Result<Vec<HistoryPoint>>;

    /// Rate limits of the namespace in the order of their keys, at most `most` (up to [`MAX_PAGE`]) of
    /// those after `after`, among the first 5,000 of all namespaces.
    async fn limits(&self, after: &str, most: usize) -> Result<Vec<LimitLevel>>;

    /// Worker numbers of the namespace's ids that are held, at most `most` (up to [`MAX_PAGE`]), by name
    /// and number.
    async fn worker_numbers(&self, most: usize) -> Result<Vec<WorkerNumber>>;
}

/// Takes locks, leases and jobs from other holders; each action is in the audit log, with its reason.
///
/// # Cancel safety
/// When a method is dropped, its effect may or may not happen.
///
/// # Errors
/// `Invalid` for a bad key or a reason that is not 1 to [`MAX_REASON_BYTES`] bytes; `Unavailable`;
/// `Indeterminate` when the answer never came.
///
/// Implemented by this crate; see [`Backend`](crate::Backend#implementing-it).
#[async_trait]
pub trait Operator: Send + Sync + fmt::Debug {
    /// Takes a lease from its holder, and the permits, the leadership and the leased mutex of the same key;
    /// returns the holders.
    ///
    /// # Guarantees
    /// It is free at once. The former holder's token is no longer valid: its next renewal or check-in returns
    /// `Lost`. After a fail-over, a lease that was not renewed since may have another holder, unknown to this
    /// server: it is granted when the time to live that the next caller requests has passed since the
    /// fail-over.
    async fn release_lease(&self, key: Key, reason: &str) -> Result<Vec<String>>;

    /// Terminates the sessions that hold the lock of a mutex, or another advisory lock.
    ///
    /// A session of a backend holds all mutexes of its process: all of them are lost, and the process learns
    /// of it. If a transaction holds the lock, it is rolled back.
    ///
    /// # Errors
    /// `Unsupported` where this role may not terminate sessions of another role, which requires
    /// `pg_signal_backend`: no session of that role is terminated. `Unsupported` in memory, too.
    async fn terminate_holder(&self, key: Key, reason: &str) -> Result<Vec<TerminatedSession>>;

    /// Cancels a job, waiting or running; returns whether it existed.
    ///
    /// # Errors
    /// `TimedOut` when a transaction has the job locked.
    async fn cancel_job(&self, queue: &str, id: i64, reason: &str) -> Result<bool>;

    /// Changes a job that waits; returns whether it did. A job that runs, has ended, has expired or does not
    /// exist is not changed; nor is one whose lease has ended, until its next attempt has failed, and one that
    /// is not [as it was read](JobEdit::if_unchanged).
    ///
    /// # Guarantees
    /// Waiting workers are notified, and claim a job that is due now at once, like one that was pushed. The
    /// job keeps its number, its keys, its name, its headers and its attempts. One of a
    /// [group](crate::queue::Job::group) that is due later leaves its place in the group; in an
    /// [ordered](crate::queue::Groups::ordered) queue those that were pushed after it wait for it.
    ///
    /// # Errors
    /// `Invalid` for an edit of nothing, for what a push refuses, and for fewer attempts than the job has had;
    /// `TimedOut` when a claim or a transaction has the job locked.
    async fn edit_job(&self, queue: &str, id: i64, edit: JobEdit, reason: &str) -> Result<bool>;

    /// Cancels all jobs that a filter matches, waiting or running unless it names a state, in parts of 1,000; its
    /// [limit](JobFilter::limit) and [place](JobFilter::after) do not count. An empty name, group or tag is any. A job that is
    /// pushed meanwhile may be among them. Unless the filter names a state, a list of several pages is gone through twice,
    /// because a job of a [group](crate::queue::Job::group) moves to an earlier place when there is room in its group.
    ///
    /// # Guarantees
    /// Each part is cancelled as a whole, with a record for each of its jobs. With a state that waits, no job is
    /// cancelled that runs by then.
    ///
    /// # Errors
    /// `Invalid` for a state in which jobs have ended. After an error some parts may be cancelled, and the error says how many
    /// jobs: call it again.
    async fn cancel_jobs(&self, filter: &JobFilter, reason: &str) -> Result<MatchedJobs>;

    /// Changes all jobs that a filter matches and that wait, as [`edit_job`](Self::edit_job) does, in parts of 1,000; its
    /// [limit](JobFilter::limit) and [place](JobFilter::after) do not count.
    ///
    /// # Guarantees
    /// Each part is changed as a whole, with a record for each of its jobs. Nothing is remembered of them, so a job that is moved
    /// to a later place in the list is found again. With a time or a priority, jobs that have all that already are therefore left,
    /// and not counted. A job that a worker takes and gives back meanwhile may be changed again.
    ///
    /// # Errors
    /// `Invalid` for an edit of nothing, for what a push refuses, for a [condition](JobEdit::if_unchanged), and for a state in which
    /// jobs run or have ended. After an error some parts may be changed, and the error says how many jobs.
    async fn edit_jobs(
        &self,
        filter: &JobFilter,
        edit: JobEdit,
        reason: &str,
    ) -> Result<MatchedJobs>;

    /// Records in the audit log an action that is done by other means, such as pausing a queue. Call it
    /// before the action, and do nothing if it fails: then no action lacks its record.
    ///
    /// # Errors
    /// `Invalid` for an action that is not 1 to 63 bytes, or a target that is not 1 to 4000.
    async fn record(&self, action: &str, target: &str, reason: &str) -> Result<()>;

    /// Gives priority to the session with this process ID, until the scope is dropped: the statements of
    /// sessions that block it are cancelled and, after a grace period, these sessions are terminated. Backend
    /// crates wrap it as `with_priority_in`.
    ///
    /// # Errors
    /// `Invalid` for times outside of their limits, `Unsupported` in memory.
    fn prioritize(&self, pid: i64, priority: Priority) -> Result<PriorityScope>;
}

pub(crate) fn since_epoch(micros: i64) -> SystemTime {
    UNIX_EPOCH + duration(micros)
}

pub(crate) fn duration(micros: i64) -> Duration {
    Duration::from_micros(micros.max(0).unsigned_abs())
}

/// An async or a blocking backend, as functions of backend crates take it.
pub trait Operated {
    /// The operator of the backend.
    fn as_operator(&self) -> Arc<dyn Operator>;
}

impl<B: crate::Backend + ?Sized> Operated for B {
    fn as_operator(&self) -> Arc<dyn Operator> {
        self.operator()
    }
}

impl Operated for crate::blocking::Backend {
    fn as_operator(&self) -> Arc<dyn Operator> {
        self.inner().operator()
    }
}
