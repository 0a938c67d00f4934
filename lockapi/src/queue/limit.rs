//! How many jobs run at once, and how often one begins: of a queue, or of a group.

use std::time::Duration;

use super::operations::LimitRow;
use crate::error::{Error, ErrorKind, Result};
use crate::limit::{Algorithm, Quota};

/// The largest limit of the jobs of a queue that run at once.
pub const MAX_RUNNING: u32 = 1000;

/// How many jobs run at once, and how often one begins, in all programs together: of a queue
/// ([`Queue::set_limit`](crate::Queue::set_limit)) or of a group ([`Queue::set_group_limit`](crate::Queue::set_group_limit)). It is
/// stored in the database.
///
/// ```
/// use lockapi::limit::Quota;
/// use lockapi::queue::JobLimit;
///
/// let twenty = JobLimit::default().running(20);
/// let ten_a_second = JobLimit::default().rate(Quota::per_second(10));
/// let both = twenty.rate(Quota::per_second(10).burst(2));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobLimit {
    running: Option<u32>,
    rate: Option<Quota>,
}

impl JobLimit {
    /// At most so many jobs run at once, 1 to [`MAX_RUNNING`]; of a group also 0, which pauses it.
    #[must_use]
    pub fn running(mut self, jobs: u32) -> Self {
        self.running = Some(jobs);
        self
    }

    /// Jobs are claimed at this rate, or those of a group admitted: each delivery of a queue, and each attempt of a job of a group, takes
    /// a permit. The quota has to
    /// use the [cell rate algorithm](Algorithm::Gcra), as it does unless told otherwise.
    #[must_use]
    pub fn rate(mut self, quota: Quota) -> Self {
        self.rate = Some(quota);
        self
    }

    /// How many jobs run at once at most; `None` if that is not limited.
    #[must_use]
    pub fn most_running(&self) -> Option<u32> {
        self.running
    }

    /// The rate at which jobs begin; `None` if that is not limited.
    #[must_use]
    pub fn quota(&self) -> Option<Quota> {
        self.rate
    }

    /// The columns of the row of a queue, if it is within the limits.
    pub(crate) fn row(&self) -> Result<LimitRow> {
        if *self == Self::default() {
            return Err(nothing("clear_limit takes the limit away"));
        }
        if self.running == Some(0) {
            return Err(invalid(format!(
                "a limit of 0 running jobs; allowed are 1 to {MAX_RUNNING}; to run none, pause the queue"
            )));
        }
        self.row_from(1)
    }

    /// The same of a group.
    pub(super) fn row_of_group(&self) -> Result<LimitRow> {
        self.row_from(0)
    }

    fn row_from(&self, least: u32) -> Result<LimitRow> {
        if let Some(running) = self.running
            && running > MAX_RUNNING
        {
            return Err(invalid(format!(
                "a limit of {running} running jobs; allowed are {least} to {MAX_RUNNING}"
            )));
        }
        if *self == Self::default() {
            return Err(nothing("None takes the limit of a group away"));
        }
        let mut row = LimitRow {
            running: self.running.map(i64::from),
            ..LimitRow::default()
        };
        if let Some(quota) = self.rate {
            row.set_rate(quota)?;
        }
        Ok(row)
    }
}

fn nothing(remedy: &str) -> Error {
    invalid(format!(
        "a limit of neither running jobs nor a rate; {remedy}"
    ))
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, "set_limit", message)
}

impl LimitRow {
    pub(super) fn set_rate(&mut self, quota: Quota) -> Result<()> {
        if quota.algorithm() != Algorithm::Gcra {
            return Err(invalid(format!(
                "a rate by {:?}; allowed is {:?}",
                quota.algorithm(),
                Algorithm::Gcra
            )));
        }
        quota.check()?;
        let count = |number: u64| i64::try_from(number).ok();
        self.permits = count(quota.permits());
        self.period = i64::try_from(quota.period().as_nanos()).ok();
        self.burst = count(quota.limit());
        self.step = Some(quota.interval());
        Ok(())
    }
}

/// The limit of a queue, and how far it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CurrentLimit {
    /// What was set.
    pub limit: JobLimit,
    /// How many jobs run, which hold a place; 0 where that is not limited.
    pub running: u32,
}

impl CurrentLimit {
    pub(crate) fn new((row, running): (LimitRow, i64)) -> Self {
        let count = |number: i64| u32::try_from(number).unwrap_or(u32::MAX);
        let unsigned = |number: Option<i64>| number.map(i64::unsigned_abs);
        let quota = || {
            let period = Duration::from_nanos(unsigned(row.period)?);
            let quota = Quota::new(unsigned(row.permits)?, period);
            let burst = unsigned(row.burst)?;
            Some(if burst == quota.limit() {
                quota
            } else {
                quota.burst(burst)
            })
        };
        Self {
            limit: JobLimit {
                running: row.running.map(count),
                rate: quota(),
            },
            running: count(running),
        }
    }
}
