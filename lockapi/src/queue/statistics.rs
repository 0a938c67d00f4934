//! How many jobs a queue has, and which have no handler.

use std::fmt;
use std::time::Duration;

use super::operations::{Counted, UnhandledRow};

/// How many jobs a queue has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Due and waiting for a worker.
    pub ready: Tally,
    /// Running on workers.
    pub running: Tally,
    /// Not yet due.
    pub delayed: Tally,
    /// Dead letters.
    pub dead: Tally,
    /// How long the oldest ready job has been due.
    pub oldest: Option<Duration>,
    /// Whether the queue is paused.
    pub paused: bool,
    /// For how long it still is, if it is paused for a time.
    pub resumes_in: Option<Duration>,
}

/// Jobs of one name that are due and waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unhandled {
    /// The name.
    pub name: String,
    /// How many were counted.
    pub jobs: u64,
    /// For how long the first of them has been due.
    pub waited: Duration,
}

impl From<UnhandledRow> for Unhandled {
    fn from(row: UnhandledRow) -> Self {
        Self {
            name: row.name,
            jobs: row.jobs.max(0).unsigned_abs(),
            waited: Duration::from_micros(row.waited.max(0).unsigned_abs()),
        }
    }
}

/// A count with an upper bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    /// How many were counted.
    pub count: u64,
    /// Whether there may be more.
    pub more: bool,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = if self.more { " or more" } else { "" };
        write!(f, "{}{more}", self.count)
    }
}

impl From<Counted> for Statistics {
    fn from(counted: Counted) -> Self {
        let time = |micros: i64| Duration::from_micros(micros.max(0).unsigned_abs());
        let tally = |count: i64, more| Tally {
            count: count.max(0).unsigned_abs(),
            more,
        };
        Self {
            ready: tally(counted.ready, counted.more_due),
            running: tally(counted.running, counted.more_due),
            delayed: tally(counted.delayed, counted.more_delayed),
            dead: tally(counted.dead, counted.more_dead),
            oldest: counted.oldest.map(time),
            paused: counted.paused,
            resumes_in: counted.resumes_in.map(time),
        }
    }
}
