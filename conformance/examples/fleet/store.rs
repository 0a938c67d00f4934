//! Where tasks and the log are kept, for workers and for the program that watches them.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use lockapi::{ErrorKind, Fence};

use crate::audit::Audit;
use crate::plan::Task;

/// Why something was not stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error(transparent)]
    Lock(#[from] lockapi::Error),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

impl StoreError {
    /// Whether it was refused because the lock is no longer held.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Self::Lock(error) if error.kind() == ErrorKind::Lost)
    }
}

pub(crate) type Stored<T> = Result<T, StoreError>;

/// What a worker may do next.
#[derive(Debug, Default)]
pub(crate) struct Pick {
    /// Tasks that are due, in this worker's own order.
    pub(crate) due: Vec<String>,
    /// Nothing is due any more, nor will be.
    pub(crate) over: bool,
}

/// A run that was begun.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) id: i64,
    pub(crate) work: Duration,
}

/// What a worker has counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Attempts that found the lock of a task held.
    pub(crate) contended: i64,
    /// Runs given up because their lock was lost.
    pub(crate) abandoned: i64,
    /// Writes that were refused because their lock was lost.
    pub(crate) refused: i64,
}

/// What a node runs.
#[derive(Clone, Debug)]
pub(crate) struct Busy {
    pub(crate) node: String,
    pub(crate) tasks: Vec<String>,
}

/// How things stand.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) elapsed: Duration,
    pub(crate) due: i64,
    pub(crate) completed: i64,
    pub(crate) failed: i64,
    pub(crate) counts: Counts,
    pub(crate) busy: Vec<Busy>,
}

/// Tasks and the log of their runs.
#[async_trait]
pub(crate) trait Store: Send + Sync {
    /// Adds a worker, and notes later what it has counted.
    async fn report(&self, node: &str, counts: Counts) -> Stored<()>;

    /// Finds up to `limit` tasks that are due.
    async fn pick(&self, node: &str, limit: i64) -> Stored<Pick>;

    /// Begins the run of a task in one transaction: rejects a stale holder, notes as failed what
    /// an earlier holder left unfinished, and logs the run. `None` when it is not due any more.
    async fn begin(&self, task: &str, node: &str, fence: Option<&Fence>) -> Stored<Option<Run>>;

    /// Completes a run in one transaction: rejects a stale holder, logs the end, and sets when the
    /// task is due next. May be repeated when it is unknown whether it happened.
    async fn complete(&self, run: &Run, fence: Option<&Fence>) -> Stored<()>;

    /// How many workers there are.
    async fn nodes(&self) -> Stored<usize>;

    /// Adds the tasks, which are due from now on for `time`.
    async fn open(&self, tasks: &[Task], time: Duration) -> Stored<()>;

    /// Notes that a worker was disturbed at that moment.
    async fn disturbed(&self, node: &str, how: &str, at: Instant) -> Stored<()>;

    /// Workers that run something, the busiest first.
    async fn busy(&self) -> Stored<Vec<Busy>>;

    /// How things stand.
    async fn snapshot(&self) -> Stored<Snapshot>;

    /// What the log says.
    async fn audit(&self) -> Stored<Audit>;
}
