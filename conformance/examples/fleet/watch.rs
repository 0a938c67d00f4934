//! Where tasks and the log of their runs are kept, for the program that watches the workers.

use std::time::{Duration, Instant};

use async_trait::async_trait;

use crate::audit::Audit;
use crate::plan::Task;
use crate::store::{Counts, Stored};

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

/// Tasks and the log of their runs, seen from outside.
#[async_trait]
pub(crate) trait Watch: Send + Sync {
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
