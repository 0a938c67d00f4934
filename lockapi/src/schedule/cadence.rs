//! When a task is due, as a function of time.

use super::operations::Due;
use super::task::{MAX_EVERY, MIN_EVERY};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::micros;

/// The most due times before a run that are counted as missed.
const MAX_MISSED: usize = 1000;
const SECOND: i64 = 1_000_000;

/// What a task is due by; times in microseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cadence {
    /// The time between two due times.
    Every(i64),
    /// A cron expression in a time zone.
    Cron {
        /// The expression.
        expression: String,
        /// The IANA name of the time zone.
        zone: String,
    },
}

/// What is to be done about the times that a task was due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Firing {
    /// The times to record.
    pub(crate) runs: Vec<Planned>,
    /// When it is due next.
    pub(crate) next: Option<i64>,
}

/// One time to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// When it was due.
    pub at: i64,
    /// Whether it is recorded only.
    pub skipped: bool,
    /// How many times before it have no run.
    pub missed: i64,
}

impl Cadence {
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self::Every(every) => {
                if (micros(MIN_EVERY)..=micros(MAX_EVERY)).contains(every) {
                    return Ok(());
                }
                let message =
                    format!("an interval of {every} µs; allowed are {MIN_EVERY:?} to 10 years");
                Err(Error::new(ErrorKind::Invalid, "check", message))
            }
            Self::Cron { expression, zone } => cron(expression, zone).map(drop),
        }
    }

    /// The first due time after `after`; intervals are counted from `from`, which is due itself or
    /// where they start. `None` when there is no more.
    pub(crate) fn next(&self, from: i64, after: i64) -> Result<Option<i64>> {
        match self {
            Self::Every(every) => {
                let passed = after.saturating_sub(from).div_euclid(*every);
                Ok(passed
                    .checked_add(1)
                    .and_then(|steps| steps.checked_mul(*every))
                    .and_then(|time| from.checked_add(time)))
            }
            Self::Cron { expression, zone } => cron(expression, zone)?.next(after),
        }
    }

    /// What to do at `now` about a task that has been due since `due.next`.
    pub(crate) fn fire(&self, due: &Due) -> Result<Firing> {
        let most = match due.misfire {
            2 => usize::try_from(due.misfire_most).unwrap_or(0).max(1),
            _ => 1,
        };
        let (times, next) = self.latest(due.next, due.now, most + MAX_MISSED)?;
        let split = times.len().saturating_sub(most);
        let (missed, fired) = times.split_at(split);
        let mut missed = i64::try_from(missed.len()).unwrap_or(i64::MAX);
        let late = |at: i64| due.misfire == 0 && due.now - at > due.misfire_most;
        let runs = fired.iter().map(|at| Planned {
            at: *at,
            skipped: late(*at),
            missed: std::mem::take(&mut missed),
        });
        Ok(Firing {
            runs: runs.collect(),
            next,
        })
    }

    /// The latest `most` due times from `from`, which is one, to `now`, in their order; and the
    /// first after `now`.
    ///
    /// It looks back from `now` in strides that double, so that the time it takes does not grow with the time
    /// that was missed.
    fn latest(&self, from: i64, now: i64, most: usize) -> Result<(Vec<i64>, Option<i64>)> {
        let mut stride = 64 * SECOND;
        if let Self::Every(every) = self {
            let most = i64::try_from(most).unwrap_or(i64::MAX);
            stride = stride.max(every.saturating_mul(most));
        }
        loop {
            let start = now.saturating_sub(stride);
            let whole = start <= from;
            let mut times = std::collections::VecDeque::new();
            let mut at = if whole {
                Some(from)
            } else {
                self.next(from, start)?
            };
            while let Some(time) = at.filter(|at| *at <= now) {
                if times.len() == most {
                    times.pop_front();
                }
                times.push_back(time);
                at = self.next(from, time)?;
            }
            if whole || times.len() == most {
                return Ok((times.into(), at));
            }
            stride = stride.saturating_mul(2);
        }
    }
}

#[cfg(feature = "cron")]
fn cron(expression: &str, zone: &str) -> Result<super::cron::Cron> {
    super::cron::Cron::new(expression, zone)
}

/// Cron expressions that other nodes have set.
#[cfg(not(feature = "cron"))]
fn cron(_: &str, _: &str) -> Result<Never> {
    let message = "cron expressions need the feature `cron` of lockapi";
    Err(Error::new(ErrorKind::Unsupported, "schedule", message))
}

#[cfg(not(feature = "cron"))]
enum Never {}

#[cfg(not(feature = "cron"))]
impl Never {
    fn next(&self, _: i64) -> Result<Option<i64>> {
        match *self {}
    }
}

#[cfg(test)]
mod tests;
