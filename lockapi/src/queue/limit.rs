//! How many jobs of a queue run at once, and how often one is claimed.

use std::time::Duration;

use super::operations::QueueLimitRow;
use crate::error::{Error, ErrorKind, Result};
use crate::limit::{Algorithm, Quota};

/// The largest limit of the jobs of a queue that run at once.
pub const MAX_RUNNING: u32 = 1000;

/// How many jobs of a queue run at once, and how often one is claimed, in all programs together; it is stored in the database. See
/// [`Queue::set_limit`](crate::Queue::set_limit).
///
/// ```
/// use lockapi::limit::Quota;
/// use lockapi::queue::QueueLimit;
///
/// let twenty = QueueLimit::default().running(20);
/// let ten_a_second = QueueLimit::default().rate(Quota::per_second(10));
/// let both = twenty.rate(Quota::per_second(10).burst(2));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLimit {
    running: Option<u32>,
    rate: Option<Quota>,
}

impl QueueLimit {
    /// At most so many jobs run at once, 1 to [`MAX_RUNNING`].
    #[must_use]
    pub fn running(mut self, jobs: u32) -> Self {
        self.running = Some(jobs);
        self
    }

    /// Jobs are claimed at this rate, each delivery with a permit; the quota has to use the
    /// [cell rate algorithm](Algorithm::Gcra), as it does unless told otherwise.
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

    /// The rate at which jobs are claimed; `None` if that is not limited.
    #[must_use]
    pub fn quota(&self) -> Option<Quota> {
        self.rate
    }

    /// The columns of the row, if it is within the limits.
    pub(crate) fn row(&self) -> Result<QueueLimitRow> {
        let invalid = |message| Err(Error::new(ErrorKind::Invalid, "set_limit", message));
        if let Some(running) = self.running
            && !(1..=MAX_RUNNING).contains(&running)
        {
            let hint = if running == 0 {
                "; to run none, pause the queue"
            } else {
                ""
            };
            return invalid(format!(
                "a limit of {running} running jobs; allowed are 1 to {MAX_RUNNING}{hint}"
            ));
        }
        let mut row = QueueLimitRow {
            running: self.running.map(i64::from),
            ..QueueLimitRow::default()
        };
        if let Some(quota) = self.rate {
            if quota.algorithm() != Algorithm::Gcra {
                return invalid(format!(
                    "a rate by {:?}; allowed is {:?}",
                    quota.algorithm(),
                    Algorithm::Gcra
                ));
            }
            quota.check()?;
            let count = |number: u64| i64::try_from(number).ok();
            row.permits = count(quota.permits());
            row.period = i64::try_from(quota.period().as_nanos()).ok();
            row.burst = count(quota.limit());
            row.step = Some(quota.interval());
        }
        if row == QueueLimitRow::default() {
            return invalid(
                "a limit of neither running jobs nor a rate; clear_limit takes the limit away"
                    .to_owned(),
            );
        }
        Ok(row)
    }
}

/// The limit of a queue, and how far it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CurrentLimit {
    /// What was set.
    pub limit: QueueLimit,
    /// How many jobs run, which hold a place; 0 where that is not limited.
    pub running: u32,
}

impl CurrentLimit {
    pub(crate) fn new((row, running): (QueueLimitRow, i64)) -> Self {
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
            limit: QueueLimit {
                running: row.running.map(count),
                rate: quota(),
            },
            running: count(running),
        }
    }
}
