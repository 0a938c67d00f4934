//! Looking up jobs and queues, page by page.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use crate::error::{Error, ErrorKind, Result};
use crate::key::check_name;
use crate::queue::{AttemptError, Headers, Priority, Progress, check_tag};

/// The most jobs or queues of one page.
pub const MAX_PAGE: usize = 1000;
/// The most characters of a payload that are read.
pub const MAX_PAYLOAD_CHARS: usize = 65_536;
/// The year 10000, in microseconds since 1970.
const END_OF_TIME: i64 = 253_402_300_800_000_000;
/// How many jobs are examined for a page.
pub(crate) const EXAMINED: i64 = 5000;

/// What a job is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JobState {
    /// Due, and waiting for a worker.
    Ready,
    /// Running on a worker.
    Running,
    /// Not yet due.
    Delayed,
    /// Completed, where its queue keeps it.
    Completed,
    /// Failed for good: a dead letter.
    Failed,
    /// Cancelled.
    Cancelled,
}

impl JobState {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Ready,
        Self::Running,
        Self::Delayed,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Its name, in lower case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Running => "running",
            Self::Delayed => "delayed",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether the job is in the archive.
    #[must_use]
    pub const fn has_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for JobState {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|state| state.as_str() == text).ok_or_else(|| {
            let message = format!(
                "the state {text:?}; allowed are ready, running, delayed, completed, failed and cancelled"
            );
            Error::new(ErrorKind::Invalid, "jobs", message)
        })
    }
}

/// The place in a list of jobs after which the next page begins; as text, for addresses and arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobPlace {
    pub(crate) priority: i64,
    pub(crate) at: i64,
    pub(crate) id: i64,
}

impl fmt::Display for JobPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.priority, self.at, self.id)
    }
}

impl FromStr for JobPlace {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut parts = text.split('.').map(str::parse::<i64>);
        let parts = (parts.next(), parts.next(), parts.next(), parts.next());
        if let (Some(Ok(priority @ 0..=3)), Some(Ok(at)), Some(Ok(id)), None) = parts {
            let place = Self { priority, at, id };
            if place.to_string() == text {
                return Ok(place);
            }
        }
        let message =
            "a place in a list of jobs that no list has told; allowed are those of a page";
        Err(Error::new(ErrorKind::Invalid, "jobs", message))
    }
}

/// Which jobs of a queue are listed.
#[derive(Clone, Debug)]
pub struct JobFilter {
    pub(crate) queue: String,
    pub(crate) state: Option<JobState>,
    pub(crate) name: String,
    pub(crate) group: String,
    pub(crate) tag: String,
    /// From the first time on and before the second.
    pub(crate) created: (i64, i64),
    pub(crate) after: Option<JobPlace>,
    pub(crate) limit: usize,
}

impl JobFilter {
    /// The jobs of a queue that wait or run, at most 100.
    pub fn queue(name: impl Into<String>) -> Self {
        Self {
            queue: name.into(),
            state: None,
            name: String::new(),
            group: String::new(),
            tag: String::new(),
            created: (0, END_OF_TIME),
            after: None,
            limit: 100,
        }
    }

    /// Those of one name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Those of one [group](crate::queue::Job::group).
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = group.into();
        self
    }

    /// Those that have a [tag](crate::queue::Job::tag).
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = tag.into();
        self
    }

    /// Those that were pushed from this time on.
    #[must_use]
    pub fn created_from(mut self, time: SystemTime) -> Self {
        self.created.0 = micros_since_epoch(time);
        self
    }

    /// Those that were pushed before this time.
    #[must_use]
    pub fn created_before(mut self, time: SystemTime) -> Self {
        self.created.1 = micros_since_epoch(time);
        self
    }

    /// Those in a state.
    #[must_use]
    pub fn state(mut self, state: JobState) -> Self {
        self.state = Some(state);
        self
    }

    /// The page that follows another: its [`next`](JobPage::next).
    #[must_use]
    pub fn after(mut self, place: JobPlace) -> Self {
        self.after = Some(place);
        self
    }

    /// At most so many jobs, 1 to [`MAX_PAGE`].
    #[must_use]
    pub fn limit(mut self, jobs: usize) -> Self {
        self.limit = jobs;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_name("queue", &self.queue, 1)?;
        check_name("name of the jobs", &self.name, 0)?;
        check_name("group", &self.group, 0)?;
        if !self.tag.is_empty() {
            check_tag(&self.tag)?;
        }
        check_page(self.limit)
    }
}

/// Microseconds since 1970, of times that the database knows.
fn micros_since_epoch(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    let micros = since.unwrap_or_default().as_micros();
    i64::try_from(micros).map_or(END_OF_TIME, |micros| micros.min(END_OF_TIME))
}

pub(crate) fn check_page(entries: usize) -> Result<()> {
    if entries == 0 || entries > MAX_PAGE {
        let message = format!("a page of {entries}; allowed are 1 to {MAX_PAGE}");
        return Err(Error::new(ErrorKind::Invalid, "inspect", message));
    }
    Ok(())
}

/// Some jobs of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobPage {
    /// The jobs.
    pub jobs: Vec<ListedJob>,
    /// Where the next page begins; `None` where nothing follows. A page may have few jobs, or none, and be
    /// followed by others: for each page 5,000 jobs are examined at most.
    pub next: Option<JobPlace>,
}

/// A job in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedJob {
    /// Its number.
    pub id: i64,
    /// What kind of job it is.
    pub name: String,
    /// What it is doing.
    pub state: JobState,
    /// Its priority.
    pub priority: Priority,
    /// How often it has been delivered.
    pub attempt: i64,
    /// How often it is delivered at most.
    pub max_attempts: i64,
    /// Not claimed before this time.
    pub run_at: SystemTime,
    /// When it was pushed.
    pub created_at: SystemTime,
    /// When it was last delivered.
    pub started_at: Option<SystemTime>,
    /// When it ended.
    pub ended_at: Option<SystemTime>,
    /// How long its lease lasts unless it is extended; `None` for a job that does not run.
    pub lease_left: Option<Duration>,
    /// The name of the worker that it was last delivered to.
    pub worker: Option<String>,
    /// Why its last attempt failed, at most 1,000 characters.
    pub error: Option<String>,
    /// The last report of progress: of the delivery that runs it or has ended it, or, while the job waits for
    /// its next attempt, of an earlier one.
    pub progress: Option<Progress>,
    /// The [group](crate::queue::Job::group) that it belongs to.
    pub group: Option<String>,
    /// Its [tags](crate::queue::Job::tag).
    pub tags: Vec<String>,
}

/// What became of the jobs that a filter matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MatchedJobs {
    /// How many were changed.
    pub changed: u64,
    /// How many a claim or a transaction had locked: they are as they were.
    pub locked: u64,
    /// How many are as they were, because meanwhile they ended, ran or changed, or because the change does not fit them. It may
    /// be some more or fewer where that happens while they are changed.
    pub unchanged: u64,
}

/// A job with all that is known of it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobDetails {
    /// What lists tell of it, with its whole error.
    pub job: ListedJob,
    /// Its queue.
    pub queue: String,
    /// From when on it is not delivered for the first time.
    pub expires_at: Option<SystemTime>,
    /// No other job of the queue has this key while this one waits or runs.
    pub unique_key: Option<String>,
    /// The recurring task that it is a run of.
    pub task: Option<String>,
    /// Its last ten attempts that failed, the oldest first.
    pub history: Vec<AttemptError>,
    /// How many bytes its payload has.
    pub payload_bytes: i64,
    /// Its payload as JSON, if it was asked for; at most [`MAX_PAYLOAD_CHARS`] characters.
    pub payload: Option<String>,
    /// Its headers; none unless its payload was asked for.
    pub headers: Headers,
    /// The [result](crate::queue::Delivery::set_result) of a job that is archived, as JSON, if the payload was asked for; at most
    /// [`MAX_PAYLOAD_CHARS`] characters.
    pub result: Option<String>,
}

/// Without the payload and the result.
impl fmt::Debug for JobDetails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobDetails")
            .field("job", &self.job)
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

/// A name of jobs that is paused in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PausedName {
    /// The name.
    pub name: String,
    /// For how long it still is; `None` until it is resumed.
    pub resumes_in: Option<Duration>,
}

/// A queue that has jobs or dead letters, or was paused or resumed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct FoundQueue {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether it is paused.
    pub paused: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_states_are_read_as_they_are_written() {
        let place = JobPlace {
            priority: 2,
            at: 1_700_000_000_000_000,
            id: 42,
        };
        assert_eq!(place.to_string().parse::<JobPlace>().unwrap(), place);
        for text in [
            "",
            "2",
            "2.3",
            "2.3.4.5",
            "4.0.0",
            "-1.0.0",
            "2.x.0",
            "2.0.99999999999999999999",
        ] {
            let error = text.parse::<JobPlace>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
        }
        for state in JobState::ALL {
            assert_eq!(state.as_str().parse::<JobState>().unwrap(), state);
        }
        assert!("waiting".parse::<JobState>().is_err());
    }
}
