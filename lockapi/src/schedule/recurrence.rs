//! When a task is due, as a function of time.

use std::collections::VecDeque;

use super::operations::Due;
use super::task::{MAX_EVERY, MIN_EVERY};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::micros;

/// The most due times before a run that are counted as missed: each of an expression is computed.
const MAX_MISSED: usize = 100;
/// The first time that is looked back over, in microseconds.
const WINDOW: i64 = 64_000_000;
/// The least time that is looked back over: due times are whole seconds.
const MIN_WINDOW: i64 = 1_000_000;

/// What a task is due by; times in microseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recurrence {
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

impl Recurrence {
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
        self.times()?.next(from, after)
    }

    /// What to do at `now` about a task that has been due since `due.next`.
    pub(crate) fn fire(&self, due: &Due) -> Result<Firing> {
        let times = self.times()?;
        if due.next > due.now {
            // The clock has been set back since that was computed.
            let next = times.next(due.next, due.now)?;
            let runs = Vec::new();
            return Ok(Firing { runs, next });
        }
        let most = match due.misfire {
            2 => usize::try_from(due.misfire_most).unwrap_or(0).max(1),
            _ => 1,
        };
        let latest = times.latest(due.next, due.now, most + MAX_MISSED)?;
        let missed = latest.len().saturating_sub(most);
        let fired = latest.iter().skip(missed);
        let mut missed = i64::try_from(missed).unwrap_or(i64::MAX);
        let late = |at: i64| due.misfire == 0 && due.now - at > due.misfire_most;
        let runs = fired.map(|at| Planned {
            at: *at,
            skipped: late(*at),
            missed: std::mem::take(&mut missed),
        });
        Ok(Firing {
            runs: runs.collect(),
            next: times.next(due.next, due.now)?,
        })
    }

    fn times(&self) -> Result<ParsedRecurrence> {
        Ok(match self {
            Self::Every(every) => ParsedRecurrence::Every(*every),
            Self::Cron { expression, zone } => {
                ParsedRecurrence::Cron(Box::new(cron(expression, zone)?))
            }
        })
    }
}

/// A recurrence that was parsed: expressions are parsed once for all that is asked of them.
enum ParsedRecurrence {
    Every(i64),
    Cron(Box<Cron>),
}

impl ParsedRecurrence {
    fn next(&self, from: i64, after: i64) -> Result<Option<i64>> {
        match self {
            Self::Every(every) => {
                let passed = after.saturating_sub(from).div_euclid(*every);
                Ok(passed
                    .checked_add(1)
                    .and_then(|steps| steps.checked_mul(*every))
                    .and_then(|time| from.checked_add(time)))
            }
            Self::Cron(cron) => cron.next(after),
        }
    }

    /// The latest `most` due times from `from`, which is one, to `now`, in their order.
    fn latest(&self, from: i64, now: i64, most: usize) -> Result<VecDeque<i64>> {
        match self {
            Self::Every(every) => {
                let last = now.saturating_sub(from).div_euclid(*every);
                let first = (last - i64::try_from(most).unwrap_or(i64::MAX) + 1).max(0);
                Ok((first..=last).map(|step| from + step * every).collect())
            }
            Self::Cron(cron) => latest_times(from, now, most, |after| cron.next(after)),
        }
    }
}

/// The latest `most` times from `from`, which is one, to `now`, in their order; `next` answers the
/// first one after a time.
///
/// It looks back from `now` in windows that double, so that the number of times that are computed does
/// not grow with the time that was missed. A window with far more times than are wanted, as where they
/// are dense in a part of the year, is left when that shows, for one half as long.
fn latest_times(
    from: i64,
    now: i64,
    most: usize,
    mut next: impl FnMut(i64) -> Result<Option<i64>>,
) -> Result<VecDeque<i64>> {
    let many = most.saturating_mul(4);
    let mut latest = VecDeque::new();
    let (mut end, mut window) = (now, WINDOW);
    while end >= from && latest.len() < most {
        let start = end.saturating_sub(window);
        let mut times = Vec::new();
        let mut at = if start < from {
            Some(from)
        } else {
            next(start)?
        };
        while let Some(time) = at.filter(|at| *at <= end && times.len() <= many) {
            times.push(time);
            at = next(time)?;
        }
        if times.len() > many && window > MIN_WINDOW {
            window /= 2;
            continue;
        }
        for time in times.into_iter().rev().take(most - latest.len()) {
            latest.push_front(time);
        }
        end = start;
        window = window.saturating_mul(2);
    }
    Ok(latest)
}

#[cfg(feature = "cron")]
use super::cron::Cron;

#[cfg(feature = "cron")]
fn cron(expression: &str, zone: &str) -> Result<Cron> {
    Cron::new(expression, zone)
}

/// Cron expressions that other nodes have set.
#[cfg(not(feature = "cron"))]
fn cron(_: &str, _: &str) -> Result<Cron> {
    let message =
        "a cron expression, which needs the feature `cron` of lockapi; allowed are intervals";
    Err(Error::new(ErrorKind::Unsupported, "schedule", message))
}

#[cfg(not(feature = "cron"))]
enum Cron {}

#[cfg(not(feature = "cron"))]
impl Cron {
    fn next(&self, _: i64) -> Result<Option<i64>> {
        match *self {}
    }
}

#[cfg(test)]
mod tests;
