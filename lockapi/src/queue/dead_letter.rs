//! Jobs that failed for good.

use std::fmt;
use std::time::SystemTime;

use super::operations::{DeadLetterRow, FailedAttempt};
use super::{Headers, delivery};

/// A job that failed for good.
#[derive(Clone)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The number of the job.
    pub id: i64,
    /// What kind of job it was.
    pub name: String,
    /// Its payload, as JSON.
    pub payload: String,
    /// Its headers.
    pub headers: Headers,
    /// Why its last attempt failed.
    pub error: String,
    /// How often it was delivered.
    pub attempts: u32,
    /// The name of the worker that had it last.
    pub worker: String,
    /// When it was pushed.
    pub created_at: SystemTime,
    /// When it failed for good.
    pub failed_at: SystemTime,
    /// The outcomes of its attempts, of the last ten at most, the oldest first.
    pub history: Vec<AttemptError>,
}

/// An attempt at a job that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttemptError {
    /// Which attempt it was, from 1 on; 0 when the job was never delivered.
    pub attempt: u32,
    /// When it failed, by the server's clock.
    pub at: SystemTime,
    /// The name of the worker that had the job.
    pub worker: String,
    /// Why it failed, at most 1,000 characters.
    pub error: String,
}

impl From<FailedAttempt> for AttemptError {
    fn from(row: FailedAttempt) -> Self {
        Self {
            attempt: u32::try_from(row.attempt).unwrap_or(u32::MAX),
            at: delivery::point(row.at),
            worker: row.worker.unwrap_or_default(),
            error: row.error,
        }
    }
}

impl From<DeadLetterRow> for DeadLetter {
    fn from(row: DeadLetterRow) -> Self {
        Self {
            id: row.id,
            name: row.name,
            payload: row.payload,
            headers: row.headers,
            error: row.error,
            attempts: u32::try_from(row.attempt).unwrap_or(u32::MAX),
            worker: row.worker,
            created_at: delivery::point(row.created_at),
            failed_at: delivery::point(row.failed_at),
            history: row.errors.into_iter().map(AttemptError::from).collect(),
        }
    }
}

/// Without the payload.
impl fmt::Debug for DeadLetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetter")
            .field("id", &self.id)
            .field("name", &self.name)
            .field("error", &self.error)
            .field("attempts", &self.attempts)
            .finish_non_exhaustive()
    }
}
