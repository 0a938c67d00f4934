//! Recurring work, on one node each time.
//!
//! Tasks are rows in the database, and so is when each is due next. Any number of nodes
//! [run](crate::Scheduler#method.run) the same scheduler; there is no leader. The node that finds a
//! task due advances it and pushes the job of its run in one transaction, so each due time has one
//! job, whichever node dies. The jobs are in the queue that has the name of the scheduler, where
//! any worker [claims](crate::Queue#method.claim) them.
//!
//! ```
//! use std::time::Duration;
//! use lockapi::queue::{Claim, Job};
//! use lockapi::schedule::{Overlap, Task};
//!
//! # async fn example() -> lockapi::Result<()> {
//! let backend = lockapi::memory::Database::new().connect().await?;
//! let scheduler = backend.scheduler("maintenance")?;
//! let job = Job::new("vacuum", &"all")?.max_attempts(3);
//! let task = Task::every("vacuum", Duration::from_secs(3600), job)
//!     .overlap(Overlap::Skip)
//!     .timeout(Duration::from_secs(600));
//! scheduler.set(task).await?; // every node may: what is there already stays as it is
//!
//! scheduler.run_now("vacuum").await?;
//! for delivery in backend.queue("maintenance")?.claim(&Claim::new(10)).await? {
//!     println!("run {}", delivery.name());
//!     delivery.ack().await?;
//! }
//! let log = scheduler.runs("vacuum", None, 10).await?;
//! assert_eq!(log[0].status, lockapi::schedule::Status::Completed);
//! # Ok(())
//! # }
//! # lockapi::blocking::block_on(example()).unwrap();
//! ```
//!
//! Cron expressions need the feature `cron`, which is on by default.

use std::fmt;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use crate::error::{Error, ErrorKind, Result};
use crate::key::check_name;
use crate::stop::Stop;
use crate::wait::unless;

#[cfg(feature = "cron")]
pub(crate) mod cron;
pub(crate) mod model;
pub(crate) mod operations;
mod recurrence;
mod run;
mod task;

pub(crate) use model::Schedules;
pub(crate) use operations::{
    DueTasks, Expire, Fire, Name, ReadDueTasks, ReadRuns, ReadTasks, Release, RemoveTask, Request,
    RunNow, SetTask, SweepRuns, SwitchTask, TaskName, TaskRow,
};
pub use recurrence::{Planned, Recurrence};
pub use run::{Decision, Round, Run, Status};
pub(crate) use task::check_task;
pub use task::{
    MAX_CATCH_UP, MAX_EVERY, MAX_TASK_PAYLOAD_BYTES, MIN_EVERY, Misfire, Overlap, RUN_ATTEMPTS,
    Task, TaskState,
};

pub(crate) use crate::queue::point;

/// The longest name of a task, in bytes.
pub const MAX_TASK_BYTES: usize = 250;
/// The most tasks or runs in one answer.
pub const MAX_LIST: usize = 1000;

/// How this handle uses a scheduler.
///
/// ```
/// use std::time::Duration;
/// use lockapi::schedule::SchedulerOptions;
///
/// let options = SchedulerOptions::default().node("web-7").keep(Duration::from_secs(24 * 90 * 3600));
/// ```
#[derive(Clone, Debug)]
pub struct SchedulerOptions {
    pub(crate) node: Option<String>,
    pub(crate) poll: Duration,
    pub(crate) keep: Duration,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        Self {
            node: None,
            poll: Duration::from_secs(1),
            keep: Duration::from_secs(30 * 24 * 3600),
        }
    }
}

impl SchedulerOptions {
    /// Names the node for readers of the log; the default is the name of the host and a random part.
    /// At most 255 bytes.
    #[must_use]
    pub fn node(mut self, node: impl Into<String>) -> Self {
        self.node = Some(node.into());
        self
    }

    /// The longest interval between two polls of [`run`](crate::Scheduler#method.run), 1 s by default,
    /// 10 ms to an hour. Due tasks are fired at their time in any case; runs that last too long and
    /// runs that are held back are noticed within this time.
    #[must_use]
    pub fn poll(mut self, poll: Duration) -> Self {
        self.poll = poll;
        self
    }

    /// How long the log is kept, 30 days by default, at most 10 years. Runs that have not ended are
    /// kept in any case. The log of a scheduler that has no tasks any more is swept by the other
    /// schedulers of the namespace, according to their options.
    #[must_use]
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }

    pub(crate) fn check(&self, name: &str) -> Result<()> {
        check_name("name of the scheduler", name, 1)?;
        if let Some(node) = &self.node {
            check_name("node", node, 0)?;
        }
        let invalid = |message| Err(Error::new(ErrorKind::Invalid, "check", message));
        if self.poll < Duration::from_millis(10) || self.poll > Duration::from_secs(3600) {
            let poll = self.poll;
            return invalid(format!(
                "polling every {poll:?}; allowed are 10 ms to 1 hour"
            ));
        }
        if self.keep > MAX_EVERY {
            let keep = self.keep;
            return invalid(format!(
                "a retention of {keep:?}; allowed are at most 10 years"
            ));
        }
        Ok(())
    }

    pub(crate) fn node_name(&self) -> String {
        self.node
            .clone()
            .unwrap_or_else(|| crate::random::process_name().to_owned())
    }
}

/// Recurring tasks that any number of nodes share.
///
/// # Guarantees
/// - **One job for each time that a task is due**, however many nodes run the scheduler and whichever
///   of them die: the task is advanced and the job is pushed in one transaction, which counts only if
///   the task is still as it was read.
/// - The database's clock decides what is due. The next time of a cron expression is computed from
///   it, never from a node's own clock. If it was ahead by more than a minute and is set back, the
///   next times are computed again; times that were fired meanwhile are not fired again.
/// - The job is delivered [at least once](crate::Queue): if its worker dies it is delivered again. A
///   job that is acknowledged in the transaction of its effects takes effect exactly once.
/// - A run that lasts longer than its task's timeout is recorded as failed, and its worker's late
///   completion is refused.
/// - Every time that was fired, held back or skipped is in the log, `lockapi.task_log` in SQL.
///
/// # Cancel safety
/// Every future may be dropped at any point; an operation that was under way may have happened, as
/// a whole or not at all.
///
/// Implemented by this crate; see [`Backend`](crate::Backend#implementing-it).
#[async_trait]
pub trait Scheduler: Send + Sync + fmt::Debug {
    /// Its name, which is that of the queue of its runs as well.
    fn name(&self) -> &str;

    /// The namespace that it is in.
    fn namespace(&self) -> &str;

    /// How this handle uses it.
    fn options(&self) -> &SchedulerOptions;

    /// Adds a task, or changes the one of its name; returns whether that changed anything.
    ///
    /// Setting a task again without a change has no effect, so every node may set its tasks when it
    /// starts. A task that is changed keeps its next due time unless its interval, expression or
    /// zone changes; one that is disabled stays disabled. If an answer is lost, the change is sent again,
    /// and then nothing may be left to change.
    ///
    /// # Errors
    /// `Invalid` for values outside of their limits, for an expression that cannot be parsed or is
    /// never due, and for an unknown zone, before anything is sent. `Unavailable`, `Indeterminate`.
    async fn set(&self, task: Task) -> Result<bool>;

    /// Removes a task; returns whether there was one. Runs that were fired continue, without a
    /// timeout; those that are held back are skipped. The log stays.
    ///
    /// # Errors
    /// `Unavailable`, `Indeterminate`.
    async fn remove(&self, task: &str) -> Result<bool>;

    /// Enables or disables a task; returns whether there is one. When it is enabled again, the times
    /// that have passed are not caught up. Runs that are held back wait while it is disabled.
    ///
    /// # Errors
    /// `Unavailable`, `Indeterminate`.
    async fn set_enabled(&self, task: &str, enabled: bool) -> Result<bool>;

    /// Fires a task at once, whether or not it is due or enabled; `None` when there is no such
    /// task. Its next due time does not change. The task's rule for [overlapping](Overlap) runs
    /// applies.
    ///
    /// # Errors
    /// `Unavailable`, `Indeterminate`: it may have been fired.
    async fn run_now(&self, task: &str) -> Result<Option<Decision>>;

    /// Reads tasks in the order of their names, at most [`MAX_LIST`] of those after `after`.
    ///
    /// # Errors
    /// `Invalid` for more, `Unavailable`.
    async fn tasks(&self, after: &str, most: usize) -> Result<Vec<TaskState>>;

    /// Reads the log of a task, the latest run first: at most [`MAX_LIST`] of those that were due
    /// before a time, of all if there is none.
    ///
    /// # Errors
    /// `Invalid` for more, `Unavailable`.
    async fn runs(&self, task: &str, before: Option<SystemTime>, most: usize) -> Result<Vec<Run>>;

    /// Performs one round: fires due tasks, ends runs that have lasted too long, and releases runs that
    /// were held back. [`run`](crate::Scheduler#method.run) repeats it.
    ///
    /// # Errors
    /// `Unavailable`; `Indeterminate`: tasks may have been fired.
    async fn tick(&self) -> Result<Round>;

    /// Returns when there may be something to do: when tasks were changed since the
    /// [round](Round::seen), or after this time.
    async fn changed(&self, seen: u64, at_most: Duration);
}

impl dyn Scheduler + '_ {
    /// Performs rounds until it is [stopped](Stop); every node may run it. While the database is
    /// unavailable it retries.
    ///
    /// # Cancel safety
    /// It may be dropped instead of being stopped.
    ///
    /// # Errors
    /// Those that a retry does not fix, such as missing tables.
    pub async fn run(&self, stop: impl Into<Stop>) -> Result<()> {
        let stop = stop.into();
        let rounds = async {
            loop {
                let (seen, pause) = pause_after(self.tick().await, self.options().poll)?;
                self.changed(seen, pause).await;
            }
        };
        unless(stop.stopped(), rounds).await.unwrap_or(Ok(()))
    }

    /// Performs everything that is due, and returns the decisions: for tests. It performs rounds until
    /// one finds nothing; runs that are held back stay held back until the others end.
    ///
    /// # Errors
    /// As for [`tick`](Scheduler::tick).
    pub async fn run_due(&self) -> Result<Vec<Decision>> {
        let mut decisions = Vec::new();
        loop {
            let round = self.tick().await?;
            let found = !round.decisions.is_empty() || round.released > 0 || round.expired > 0;
            decisions.extend(round.decisions);
            if !found && round.next != Some(Duration::ZERO) {
                return Ok(decisions);
            }
        }
    }

    /// Enables a task, which is then fired when it is due; returns whether there is one.
    ///
    /// # Errors
    /// As for [`set_enabled`](Scheduler::set_enabled).
    pub async fn enable(&self, task: &str) -> Result<bool> {
        self.set_enabled(task, true).await
    }

    /// Disables a task, which is then not fired; returns whether there is one.
    ///
    /// # Errors
    /// As for [`set_enabled`](Scheduler::set_enabled).
    pub async fn disable(&self, task: &str) -> Result<bool> {
        self.set_enabled(task, false).await
    }

    /// Reads all tasks in the order of their names.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn list(&self) -> Result<Vec<TaskState>> {
        let mut all = Vec::<TaskState>::new();
        loop {
            let after = all.last().map_or("", |task| &task.name).to_owned();
            let part = self.tasks(&after, MAX_LIST).await?;
            let full = part.len() == MAX_LIST;
            all.extend(part);
            if !full {
                return Ok(all);
            }
        }
    }
}

/// After an error that may pass, a round follows within this time.
const AGAIN: Duration = Duration::from_secs(1);

/// What to wait for after a round, and how long at most.
pub(crate) fn pause_after(round: Result<Round>, poll: Duration) -> Result<(u64, Duration)> {
    match round {
        Ok(round) => Ok((round.seen, round.next.unwrap_or(poll).min(poll))),
        // What is due stays due, and is not to be fired late.
        Err(error) if error.is_retryable() || error.kind() == ErrorKind::Indeterminate => {
            Ok((u64::MAX, poll.min(AGAIN)))
        }
        Err(error) => Err(error),
    }
}
