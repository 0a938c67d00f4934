//! Recurring tasks.

use std::fmt;
use std::time::{Duration, SystemTime};

use super::operations::{SetTask, TaskName, TaskRow};
use super::point;
use super::recurrence::Recurrence;
use crate::error::{Error, ErrorKind, Result};
use crate::key::check_name;
use crate::lease::micros;
use crate::queue::{Job, Priority};

/// The shortest interval, and the shortest timeout.
pub const MIN_EVERY: Duration = Duration::from_millis(100);
/// The longest interval, and the longest timeout.
pub const MAX_EVERY: Duration = Duration::from_secs(10 * 366 * 24 * 3600);
/// The most runs that catch up on missed times.
pub const MAX_CATCH_UP: usize = 1000;
/// The default number of attempts of a run, unless its job sets it: a run that has failed and is to be
/// retried has not ended, and holds back those after it.
pub const RUN_ATTEMPTS: u32 = 3;
/// The most bytes of the payload of a task's job.
pub const MAX_TASK_PAYLOAD_BYTES: usize = 1 << 20;

/// What becomes of due times that were not fired, because no node was running or the database was
/// unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misfire {
    /// They are not caught up. The latest of them is fired if it is at most `late` overdue, otherwise
    /// it is recorded as skipped.
    Skip {
        /// The lateness from which on a due time is missed; at most [`MAX_EVERY`].
        late: Duration,
    },
    /// One run, for the latest of them, replaces all.
    Coalesce,
    /// Each has its run, the latest ones if there are more than this, which is 1 to
    /// [`MAX_CATCH_UP`]. They run one after the other, or at the same time with
    /// [`Overlap::Allow`]; [`Overlap::Skip`] would leave one, and is refused.
    CatchUp(usize),
}

/// What becomes of a run while an earlier one has not ended. Runs that were fired while the task had [`Allow`](Self::Allow) do not
/// count as earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overlap {
    /// Both run.
    Allow,
    /// It is recorded as skipped.
    Skip,
    /// It is held back until the earlier one has ended, and released some 200 ms later, or at the next
    /// [poll](super::SchedulerOptions::poll) if that took more than five seconds. At most 1000 runs of a task are held back;
    /// further ones are skipped.
    Queue,
}

impl Overlap {
    const ALL: [Self; 3] = [Self::Allow, Self::Skip, Self::Queue];
}

/// A recurring task: what it does, and when it is due.
///
/// ```
/// use std::time::Duration;
/// use lockapi::queue::Job;
/// use lockapi::schedule::{Misfire, Overlap, Task};
///
/// let task = Task::every("metrics", Duration::from_secs(30), Job::new("collect", &"all")?)
///     .misfire(Misfire::Skip { late: Duration::from_secs(5) })
///     .overlap(Overlap::Skip)
///     .timeout(Duration::from_secs(300));
/// # Ok::<(), lockapi::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Task {
    pub(crate) name: String,
    pub(crate) recurrence: Recurrence,
    first: Option<Duration>,
    job: Job,
    misfire: Misfire,
    overlap: Option<Overlap>,
    timeout: Duration,
}

impl Task {
    /// A task that is due at an interval, for the first time one interval after it was set;
    /// [`MIN_EVERY`] to [`MAX_EVERY`].
    ///
    /// Of the job its name, payload, priority and number of attempts are used; it has
    /// [`RUN_ATTEMPTS`] attempts unless it sets another number.
    #[must_use]
    pub fn every(name: impl Into<String>, interval: Duration, job: Job) -> Self {
        Self::new(name.into(), Recurrence::Every(micros(interval)), job)
    }

    /// A task that is due by a cron expression in a time zone, such as `0 3 * * *` and
    /// `Europe/Berlin`.
    ///
    /// The fields are minute, hour, day of the month, month and day of the week, each with `*`,
    /// lists, ranges, steps and names; a sixth in front is seconds. `@daily` and the like are
    /// supported. Where the clock is put forward, a fixed time that does not exist is due at the
    /// first moment after the gap, and one with a wildcard in hour or minute is not due; where it
    /// is put back, a fixed time is due once, and one with a wildcard each time. Lists, ranges and steps in hour or
    /// minute count as wildcards: write a task for each of a few fixed times that must not be missed.
    #[cfg(feature = "cron")]
    #[must_use]
    pub fn cron(
        name: impl Into<String>,
        expression: impl Into<String>,
        zone: impl Into<String>,
        job: Job,
    ) -> Self {
        let recurrence = Recurrence::Cron {
            expression: expression.into(),
            zone: zone.into(),
        };
        Self::new(name.into(), recurrence, job)
    }

    fn new(name: String, recurrence: Recurrence, job: Job) -> Self {
        Self {
            name,
            recurrence,
            first: None,
            job: job.attempts_unless_set(RUN_ATTEMPTS),
            misfire: Misfire::Coalesce,
            overlap: None,
            timeout: Duration::ZERO,
        }
    }

    /// The time from when a task with an interval is set until it is first due; at most
    /// [`MAX_EVERY`].
    #[must_use]
    pub fn first_in(mut self, time: Duration) -> Self {
        self.first = Some(time);
        self
    }

    /// What happens to missed due times; [`Misfire::Coalesce`] by default.
    #[must_use]
    pub fn misfire(mut self, misfire: Misfire) -> Self {
        self.misfire = misfire;
        self
    }

    /// What happens to a run while an earlier one has not ended; by default [`Overlap::Skip`], and
    /// [`Overlap::Queue`] with [`Misfire::CatchUp`]. A run that has failed and waits for its next
    /// attempt has not ended.
    #[must_use]
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = Some(overlap);
        self
    }

    /// How long a delivery of a run may last, [`MIN_EVERY`] to [`MAX_EVERY`], by default without limit.
    /// After that the run is recorded as failed, and its worker has lost it.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn check(&self) -> Result<()> {
        let invalid =
            |message: String| Err(Error::new(ErrorKind::Invalid, "check", message).on(&self.name));
        check_task(&self.name)?;
        self.job.check(MAX_TASK_PAYLOAD_BYTES)?;
        if self.job.is_keyed() {
            return invalid(
                "the job of the task has a unique or an idempotency key; allowed is neither"
                    .to_owned(),
            );
        }
        if self.job.has_group() {
            return invalid(
                "the job of the task has a group; allowed is none: Overlap says whether runs of a task exclude each other"
                    .to_owned(),
            );
        }
        if !self.job.headers().is_empty() {
            return invalid("the job of the task has headers; allowed are none".to_owned());
        }
        if self.job.has_times() {
            return invalid(
                "the job of the task has a time, a delay or a time to live; allowed is none of them"
                    .to_owned(),
            );
        }
        self.recurrence
            .check()
            .map_err(|error| error.on(&self.name))?;
        if self.first.is_some_and(|first| first > MAX_EVERY) {
            return invalid(
                "the task is due first in more than 10 years; allowed are at most 10 years"
                    .to_owned(),
            );
        }
        if self.first.is_some() && !matches!(self.recurrence, Recurrence::Every(_)) {
            return invalid(
                "the task has a cron expression and a first time; allowed is one of them"
                    .to_owned(),
            );
        }
        if self.timeout != Duration::ZERO && !(MIN_EVERY..=MAX_EVERY).contains(&self.timeout) {
            return invalid(format!(
                "a timeout of {:?}; allowed are {MIN_EVERY:?} to 10 years",
                self.timeout
            ));
        }
        match self.misfire {
            Misfire::CatchUp(most) if !(1..=MAX_CATCH_UP).contains(&most) => invalid(format!(
                "catching up with {most} runs; allowed are 1 to {MAX_CATCH_UP}"
            )),
            Misfire::CatchUp(most) if most > 1 && self.overlap == Some(Overlap::Skip) => invalid(
                "the task catches up and has Overlap::Skip, so that only one of the missed runs would run; allowed are Overlap::Queue and Overlap::Allow"
                    .to_owned(),
            ),
            Misfire::Skip { late } if late > MAX_EVERY => {
                invalid(format!("a lateness of {late:?}; allowed are at most 10 years"))
            }
            _ => Ok(()),
        }
    }

    /// The row of the task as it is set at `now`.
    pub(crate) fn row(&self, name: TaskName, now: i64, topic: i64) -> Result<SetTask> {
        let next = match (&self.recurrence, self.first) {
            (Recurrence::Every(_), Some(first)) => Some(now.saturating_add(micros(first))),
            (recurrence, _) => recurrence.next(now, now)?,
        };
        if next.is_none() {
            let message =
                "the cron expression is never due; allowed are those with a time in the future";
            return Err(Error::new(ErrorKind::Invalid, "set", message).on(&self.name));
        }
        let overlap = self.overlap.unwrap_or(match self.misfire {
            Misfire::CatchUp(_) => Overlap::Queue,
            Misfire::Skip { .. } | Misfire::Coalesce => Overlap::Skip,
        });
        let (misfire, misfire_most) = match self.misfire {
            Misfire::Skip { late } => (0, micros(late)),
            Misfire::Coalesce => (1, 0),
            Misfire::CatchUp(most) => (2, i64::try_from(most).unwrap_or(i64::MAX)),
        };
        Ok(SetTask {
            row: TaskRow {
                name: name.task.clone(),
                version: 1,
                next,
                now,
                enabled: true,
                recurrence: self.recurrence.clone(),
                timeout: micros(self.timeout),
                misfire,
                misfire_most,
                overlap: overlap as i64,
                job: self.job.row(),
                last: None,
            },
            name,
            topic,
        })
    }
}

pub(crate) fn check_task(name: &str) -> Result<()> {
    // Jobs have it in a unique key, with five bytes more.
    check_name("name of the task", name, 1)?;
    if name.len() > super::MAX_TASK_BYTES {
        let message = format!(
            "the name of the task has {} bytes; allowed are 1 to {} bytes",
            name.len(),
            super::MAX_TASK_BYTES
        );
        return Err(Error::new(ErrorKind::Invalid, "check", message));
    }
    Ok(())
}

/// A task as it is stored.
#[derive(Clone)]
#[non_exhaustive]
pub struct TaskState {
    /// Its name.
    pub name: String,
    /// Its interval; `None` with a cron expression.
    pub every: Option<Duration>,
    /// Its cron expression and time zone; `None` with an interval.
    pub cron: Option<(String, String)>,
    /// Whether it is fired when it is due.
    pub enabled: bool,
    /// When it is due next.
    pub next_at: Option<SystemTime>,
    /// When its latest run in the log was due.
    pub last_at: Option<SystemTime>,
    /// What becomes of times that were missed.
    pub misfire: Misfire,
    /// What becomes of runs that overlap.
    pub overlap: Overlap,
    /// How long a delivery of a run may last.
    pub timeout: Option<Duration>,
    /// The name of its jobs.
    pub job: String,
    /// The payload of its jobs, as JSON.
    pub payload: String,
    /// The priority of its jobs.
    pub priority: Priority,
    /// How often each of them is delivered at most.
    pub max_attempts: u32,
}

impl From<TaskRow> for TaskState {
    fn from(row: TaskRow) -> Self {
        let duration = |micros: i64| Duration::from_micros(micros.max(0).unsigned_abs());
        let (every, cron) = match row.recurrence {
            Recurrence::Every(every) => (Some(duration(every)), None),
            Recurrence::Cron { expression, zone } => (None, Some((expression, zone))),
        };
        Self {
            name: row.name,
            every,
            cron,
            enabled: row.enabled,
            next_at: row.next.map(point),
            last_at: row.last.map(point),
            misfire: match row.misfire {
                0 => Misfire::Skip {
                    late: duration(row.misfire_most),
                },
                1 => Misfire::Coalesce,
                _ => Misfire::CatchUp(usize::try_from(row.misfire_most).unwrap_or(MAX_CATCH_UP)),
            },
            overlap: Overlap::ALL
                .into_iter()
                .find(|overlap| *overlap as i64 == row.overlap)
                .unwrap_or(Overlap::Skip),
            timeout: (row.timeout > 0).then(|| duration(row.timeout)),
            job: row.job.name,
            payload: row.job.payload,
            priority: Priority::numbered(row.job.priority).unwrap_or_default(),
            max_attempts: u32::try_from(row.job.max_attempts).unwrap_or(u32::MAX),
        }
    }
}

/// Without the payload.
impl fmt::Debug for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskState")
            .field("name", &self.name)
            .field("every", &self.every)
            .field("cron", &self.cron)
            .field("enabled", &self.enabled)
            .field("next_at", &self.next_at)
            .finish_non_exhaustive()
    }
}
