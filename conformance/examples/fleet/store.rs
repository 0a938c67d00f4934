//! Where tasks and the log of their runs are kept, for workers.

use std::time::Duration;

use async_trait::async_trait;
use lockapi::{ErrorKind, Fence};
use r2d2_postgres::postgres;

/// Why something was not stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error(transparent)]
    Lock(#[from] lockapi::Error),
    #[error(transparent)]
    Sqlx(#[from] sqlx::Error),
    #[error(transparent)]
    Diesel(#[from] diesel::result::Error),
    #[error(transparent)]
    Postgres(#[from] postgres::Error),
    #[error(transparent)]
    Pool(#[from] r2d2::Error),
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
    /// Tasks that are due.
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

impl Run {
    /// With the milliseconds that its work takes.
    pub(crate) fn new(id: i64, work: i64) -> Self {
        Self {
            id,
            work: Duration::from_millis(work.unsigned_abs()),
        }
    }
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

/// Tasks and the log of their runs.
#[async_trait]
pub(crate) trait Store: Send + Sync {
    /// Adds a worker, and notes later what it has counted.
    async fn report(&self, node: &str, counts: Counts) -> Stored<()>;

    /// Finds up to `limit` tasks that are due; each `order` has them in another one.
    async fn pick(&self, order: &str, limit: i64) -> Stored<Pick>;

    /// Begins the run of a task in one transaction: rejects a stale holder, notes as failed what
    /// an earlier holder left unfinished, and logs the run. `None` when it is not due any more.
    async fn begin(&self, task: &str, node: &str, fence: Option<&Fence>) -> Stored<Option<Run>>;

    /// Completes a run in one transaction: rejects a stale holder, logs the end, and sets when the
    /// task is due next. May be repeated when it is unknown whether it happened.
    async fn complete(&self, run: &Run, fence: Option<&Fence>) -> Stored<()>;
}

/// The same for libraries that block.
pub(crate) trait BlockingStore: Sync {
    /// See [`Store::report`].
    fn report(&self, node: &str, counts: Counts) -> Stored<()>;

    /// See [`Store::pick`].
    fn pick(&self, order: &str, limit: i64) -> Stored<Pick>;

    /// See [`Store::begin`].
    fn begin(&self, task: &str, node: &str, fence: Option<&Fence>) -> Stored<Option<Run>>;

    /// See [`Store::complete`].
    fn complete(&self, run: &Run, fence: Option<&Fence>) -> Stored<()>;
}
