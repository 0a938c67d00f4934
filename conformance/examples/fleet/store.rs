//! Where the runs of tasks are noted, for workers.

use std::time::Duration;

use async_trait::async_trait;
use lockapi::ErrorKind;
use lockapi::queue::Delivery;
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
    /// Whether it was refused because another has the job by now.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Self::Lock(error) if error.kind() == ErrorKind::Lost)
    }
}

pub(crate) type Stored<T> = Result<T, StoreError>;

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
    /// Runs given up because their delivery was lost.
    pub(crate) abandoned: i64,
    /// Writes that were refused because their delivery was lost.
    pub(crate) refused: i64,
}

/// The attempts at runs.
#[async_trait]
pub(crate) trait Store: Send + Sync {
    /// Adds a worker, and notes later what it has counted.
    async fn report(&self, node: &str, counts: Counts) -> Stored<()>;

    /// Whether nothing is due any more, nor will be.
    async fn over(&self) -> Stored<bool>;

    /// Notes that a run is begun, and as failed what an earlier delivery of it left unfinished.
    /// `None` when its time is outside of the time of the fleet.
    async fn begin(&self, delivery: &Delivery, node: &str) -> Stored<Option<Run>>;

    /// Notes that a run is completed; with a delivery, which is completed in the same transaction, or
    /// neither is. May be repeated when it is unknown whether it happened.
    async fn complete(&self, run: &Run, delivery: Option<&Delivery>) -> Stored<()>;
}

/// The same for libraries that block.
pub(crate) trait BlockingStore: Sync {
    /// See [`Store::report`].
    fn report(&self, node: &str, counts: Counts) -> Stored<()>;

    /// See [`Store::over`].
    fn over(&self) -> Stored<bool>;

    /// See [`Store::begin`].
    fn begin(&self, delivery: &Delivery, node: &str) -> Stored<Option<Run>>;

    /// See [`Store::complete`].
    fn complete(&self, run: &Run, delivery: Option<&Delivery>) -> Stored<()>;
}
