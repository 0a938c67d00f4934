//! What became of the due times of a task.

use std::time::{Duration, SystemTime};

use super::operations::{FireDecision, Fired, RunRow};
use super::point;
use crate::error::Failure;

/// One line of the execution log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Run {
    /// When it was due.
    pub fire_at: SystemTime,
    /// Its status.
    pub status: Status,
    /// The number of its job; `None` while it is held back, and if it was skipped.
    pub job: Option<i64>,
    /// The name of the worker that works or worked on it.
    pub node: Option<String>,
    /// When it was last delivered.
    pub started_at: Option<SystemTime>,
    /// When it ended.
    pub completed_at: Option<SystemTime>,
    /// Why it, or its latest attempt, failed, or why it was skipped.
    pub error: Option<String>,
    /// The token of its latest delivery.
    pub token: Option<i64>,
    /// How often it was delivered.
    pub attempts: u32,
    /// How many due times before it were missed and have no run; counted to 100.
    pub missed: u32,
    /// The name of the node that fired it.
    pub fired_by: String,
    /// When it was fired.
    pub fired_at: SystemTime,
}

/// The status of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// It waits for the end of an earlier run.
    Held,
    /// It waits for a worker, for the first time or again.
    Pending,
    /// A worker runs it.
    Running,
    /// It was completed.
    Completed,
    /// It failed for good, or lasted too long.
    Failed,
    /// It was not run: it overlapped, its time was missed, or the task was removed.
    Skipped,
    /// Its job was cancelled.
    Cancelled,
    /// Its job was deleted from the queue.
    Deleted,
}

impl Status {
    const WORDS: [(Self, &'static str); 8] = [
        (Self::Held, "held"),
        (Self::Pending, "pending"),
        (Self::Running, "running"),
        (Self::Completed, "completed"),
        (Self::Failed, "failed"),
        (Self::Skipped, "skipped"),
        (Self::Cancelled, "cancelled"),
        (Self::Deleted, "deleted"),
    ];
}

/// As the view of the log shows it.
impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = Self::WORDS.iter().find(|(status, _)| status == self);
        f.write_str(word.map_or("", |(_, word)| word))
    }
}

impl TryFrom<RunRow> for Run {
    type Error = Failure;

    fn try_from(row: RunRow) -> Result<Self, Failure> {
        let status = Status::WORDS.iter().find(|(_, word)| *word == row.status);
        let (status, _) = status.ok_or_else(|| Failure::corrupt("a run has an unknown status"))?;
        Ok(Self {
            fire_at: point(row.at),
            status: *status,
            job: row.job,
            node: row.node,
            started_at: row.started_at.map(point),
            completed_at: row.completed_at.map(point),
            error: row.error,
            token: row.token,
            attempts: u32::try_from(row.attempt).unwrap_or(u32::MAX),
            missed: u32::try_from(row.missed).unwrap_or(u32::MAX),
            fired_by: row.fired_by,
            fired_at: point(row.fired_at),
        })
    }
}

/// What a round decided about a due time of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// Name of the task.
    pub task: String,
    /// When it was due.
    pub fire_at: SystemTime,
    /// The number of the job, if one was pushed.
    pub job: Option<i64>,
    /// [`Status::Pending`], [`Status::Held`] or [`Status::Skipped`].
    pub status: Status,
}

impl From<Fired> for Decision {
    fn from(fired: Fired) -> Self {
        Self {
            task: fired.task,
            fire_at: point(fired.at),
            job: fired.job,
            status: match fired.decision {
                FireDecision::Fired => Status::Pending,
                FireDecision::Held => Status::Held,
                FireDecision::Overlapped | FireDecision::Missed => Status::Skipped,
            },
        }
    }
}

/// What one round of a scheduler did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Round {
    /// What this node decided about the due times of tasks.
    pub decisions: Vec<Decision>,
    /// How many runs that were held back were released.
    pub released: u64,
    /// How many runs were ended because they lasted too long.
    pub expired: u64,
    /// How long it is, by the server's clock, until the next task is due; zero if there is more to
    /// do at once.
    pub next: Option<Duration>,
    /// Tasks that are due and left to other nodes, because this node does not understand their
    /// expression or zone.
    pub left: Vec<String>,
    /// The value to pass to [`changed`](super::Scheduler::changed).
    pub seen: u64,
}
