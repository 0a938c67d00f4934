//! Jobs to push.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Headers, check_tag};
use crate::error::{Error, ErrorKind, Result};
use crate::key::check_name;
use crate::lease::micros;
use crate::telemetry;

/// The most jobs in one push.
pub const MAX_PUSH: usize = 10_000;
/// The most bytes of payload and headers in one push.
pub const MAX_PUSH_BYTES: usize = 64 << 20;
/// The longest delay.
pub const MAX_DELAY: Duration = Duration::from_secs(10 * 366 * 24 * 3600);
/// The last point in time that a job can wait for: the end of the year 9999.
const LAST_TIME: i64 = 253_402_300_799_000_000;
/// The most deliveries of a job.
const MAX_ATTEMPTS: u32 = 1_000_000;

/// Which jobs are claimed first.
///
/// Of the jobs that are due, those of the higher priority are claimed first; one claim in sixteen
/// uses the reverse order, so that low priorities are not starved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// Before all others.
    Urgent,
    /// Before the normal ones.
    High,
    /// The default.
    #[default]
    Normal,
    /// After the normal ones.
    Low,
}

impl Priority {
    /// All of them, the highest first.
    pub const ALL: [Self; 4] = [Self::Urgent, Self::High, Self::Normal, Self::Low];

    pub(crate) fn number(self) -> i64 {
        self as i64
    }

    pub(crate) fn numbered(number: i64) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|priority| priority.number() == number)
    }
}

/// What happens when a job is pushed while another of the same unique key waits or runs.
///
/// A job that runs is never changed: the result is [`How::Running`] then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unique {
    /// The existing job stays as it is.
    Skip,
    /// The waiting job is replaced by the new one: name, payload, headers, priority and time, with all attempts
    /// left.
    Replace,
    /// The waiting job gets the new name, payload and headers, and keeps its priority, attempts and time, its group and the key
    /// that it is [limited by](Job::limit_by).
    Keep,
}

impl Unique {
    pub(crate) fn number(self) -> i64 {
        self as i64
    }
}

/// A kind of jobs: their name, and what is in them.
///
/// ```
/// use lockapi::queue::{Job, JobKind};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Welcome {
///     to: String,
/// }
///
/// impl JobKind for Welcome {
///     const NAME: &'static str = "welcome";
/// }
///
/// let job = Job::of(&Welcome { to: "ada@example.com".to_owned() })?;
/// assert_eq!(job.name(), "welcome");
/// # Ok::<(), lockapi::Error>(())
/// ```
pub trait JobKind: Serialize + DeserializeOwned {
    /// The name of the jobs.
    const NAME: &'static str;
}

/// A job to push: its kind, its payload, and when it may run.
///
/// ```
/// use std::time::Duration;
/// use lockapi::queue::{Job, Priority, Unique};
///
/// #[derive(serde::Serialize)]
/// struct Welcome { to: &'static str }
///
/// let job = Job::new("send-welcome", &Welcome { to: "ada@example.com" })?
///     .priority(Priority::High)
///     .delay(Duration::from_secs(60))
///     .max_attempts(5)
///     .unique("welcome/ada", Unique::Skip);
/// assert_eq!(job.payload(), r#"{"to":"ada@example.com"}"#);
/// # Ok::<(), lockapi::Error>(())
/// ```
#[derive(Clone)]
pub struct Job {
    name: String,
    payload: String,
    priority: Priority,
    delay: Duration,
    at: i64,
    max_attempts: u32,
    ttl: Duration,
    /// Whether that was set by the program.
    attempts_set: bool,
    unique: Option<(String, Unique)>,
    idempotency_key: Option<String>,
    group: Option<String>,
    headers: Headers,
    /// The first tag that is not allowed.
    refused_tag: Option<String>,
}

/// What the unique keys of runs of tasks begin with.
pub(crate) const RUN_KEY: &str = "task/";

impl Job {
    /// A job of this kind whose payload is a value as JSON; it is due at once and has 20 attempts.
    ///
    /// # Errors
    /// `Invalid` for a value that cannot be represented in JSON.
    pub fn new(name: impl Into<String>, payload: &(impl Serialize + ?Sized)) -> Result<Self> {
        let name = name.into();
        match serde_json::to_string(payload) {
            Ok(text) => Ok(Self::with(name, text)),
            Err(error) => {
                // The error may quote the payload.
                let message = format!(
                    "the payload cannot be written as JSON ({:?} error)",
                    error.classify()
                );
                Err(Error::new(ErrorKind::Invalid, "push", message).on(name))
            }
        }
    }

    /// A job of a [kind](JobKind).
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn of<K: JobKind>(job: &K) -> Result<Self> {
        Self::new(K::NAME, job)
    }

    /// A job whose payload is a text that already is JSON.
    ///
    /// # Errors
    /// `Invalid` for a text that is not JSON or is nested deeper than 128 levels.
    pub fn json(name: impl Into<String>, payload: impl Into<String>) -> Result<Self> {
        let (name, payload) = (name.into(), payload.into());
        match check_json(&payload) {
            Ok(()) => Ok(Self::with(name, payload)),
            Err(error) => Err(error.during("push").on(name)),
        }
    }

    fn with(name: String, payload: String) -> Self {
        Self {
            name,
            payload,
            priority: Priority::default(),
            delay: Duration::ZERO,
            at: 0,
            max_attempts: 20,
            ttl: Duration::ZERO,
            attempts_set: false,
            unique: None,
            idempotency_key: None,
            group: None,
            headers: Headers::default(),
            refused_tag: None,
        }
    }

    /// Sets its priority.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Delays it until this time has passed, by the server's clock; at most [`MAX_DELAY`].
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Delays it until this point in time, by the server's clock; a time in the past means at once.
    /// A [`delay`](Self::delay) is added to it.
    #[must_use]
    pub fn at(mut self, time: SystemTime) -> Self {
        self.at = micros_of(time);
        self
    }

    /// The maximum number of deliveries, 20 by default; after that it becomes a dead letter.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self.attempts_set = true;
        self
    }

    /// This number unless the program has set one.
    pub(crate) fn attempts_unless_set(mut self, attempts: u32) -> Self {
        if !self.attempts_set {
            self.max_attempts = attempts;
        }
        self
    }

    /// If it has been due for this long and was never delivered, it becomes a dead letter and does not
    /// block another job of its unique key. A claim that reaches it moves it to the dead letters; if no
    /// worker claims, a sweep does, within about ten minutes, as long as any process uses a queue of
    /// the namespace. At most [`MAX_DELAY`]; zero, the default, means no limit.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// At most one job with this key waits or runs in the queue; the key has 1 to 255 bytes, and does not begin
    /// with `task/`, as those of runs of [tasks](crate::schedule::Task) do.
    #[must_use]
    pub fn unique(mut self, key: impl Into<String>, otherwise: Unique) -> Self {
        self.unique = Some((key.into(), otherwise));
        self
    }

    /// Makes the push repeatable: for a day, a push with a key that was used before finds the job
    /// of the first push, also when that has completed. The key has 1 to 255 bytes.
    ///
    /// Set it if a push whose answer was lost has to be repeated.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Puts it into a group: at most so many jobs of a group run at once, in all programs together, one
    /// unless [set](super::Queue::set_groups), and groups have their turns one after the other. The key
    /// of a group has 1 to 255 bytes; a group needs no other preparation.
    #[must_use]
    pub fn group(mut self, key: impl Into<String>) -> Self {
        self.group = Some(key.into());
        self
    }

    /// Limits it by a key besides its [group](Self::group), such as the provider that it calls, which jobs of all groups share. A
    /// key is limited like the group of that name: at most so many jobs with the key or in that group run at once, one unless
    /// [set](super::Queue::set_group_limit) for it or for [all](super::Queue::set_groups), and they take permits of one rate. A job
    /// without a group is in the group of its key.
    ///
    /// Groups take turns as before, and share the room of a key one after the other. A job whose key has no room holds up the jobs of
    /// its group that come after it. A key has no order: also where groups are ordered, its limit is what was set. The key has 1 to 255
    /// bytes, and is the [header](Self::header) `limit-by`, so a push in SQL has it there.
    #[must_use]
    pub fn limit_by(mut self, key: impl Into<String>) -> Self {
        self.headers.limit_by(key.into());
        self
    }

    /// Sets a header, for what belongs to the job and not to its payload, such as the context of a trace.
    /// Handlers [read](super::Delivery::header) it, in each attempt, and it stays with the job in the dead
    /// letters and afterwards.
    ///
    /// At most [`MAX_HEADERS`](super::MAX_HEADERS), of [`MAX_HEADER_BYTES`](super::MAX_HEADER_BYTES) in all. A
    /// name has 1 to [`MAX_HEADER_NAME`](super::MAX_HEADER_NAME) bytes of visible ASCII, and is stored in lower
    /// case: of several values of one name the last counts. A value has at most
    /// [`MAX_HEADER_VALUE`](super::MAX_HEADER_VALUE) bytes, and no NUL.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Adds a tag, by which operators [list](crate::admin::JobFilter::tag) jobs: 1 to [`MAX_TAG`](super::MAX_TAG) bytes
    /// without a comma.
    ///
    /// Tags are the [header](Self::header) `tags`, separated by commas, so a push in SQL has them there; together they have
    /// at most [`MAX_HEADER_VALUE`](super::MAX_HEADER_VALUE) bytes.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        let tag = tag.into();
        if check_tag(&tag).is_ok() {
            self.headers.tag(&tag);
        } else {
            self.refused_tag.get_or_insert(tag);
        }
        self
    }

    /// What kind of job it is.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its payload, as JSON.
    #[must_use]
    pub fn payload(&self) -> &str {
        &self.payload
    }

    /// Its headers.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    pub(crate) fn is_keyed(&self) -> bool {
        self.unique.is_some() || self.idempotency_key.is_some()
    }

    pub(crate) fn has_times(&self) -> bool {
        !self.delay.is_zero() || self.at > 0 || !self.ttl.is_zero()
    }

    pub(crate) fn has_group(&self) -> bool {
        self.group.is_some()
    }

    /// The group in which it takes its turn.
    fn lane(&self) -> Option<&str> {
        self.group.as_deref().or_else(|| self.headers.limit_key())
    }

    pub(crate) fn is_idempotent(&self) -> bool {
        self.idempotency_key.is_some()
    }

    pub(crate) fn check(&self, max_payload: usize) -> Result<()> {
        check_name("name", &self.name, 1)?;
        let invalid =
            |message: String| Err(Error::new(ErrorKind::Invalid, "check", message).on(&self.name));
        check_payload(&self.payload, max_payload).map_err(|error| error.on(&self.name))?;
        if self.delay > MAX_DELAY {
            return invalid(format!(
                "a delay of {:?}; allowed are at most 10 years",
                self.delay
            ));
        }
        if self.ttl > MAX_DELAY {
            return invalid(format!(
                "a ttl of {:?}; allowed are at most 10 years",
                self.ttl
            ));
        }
        let checked = check_at(self.at).and_then(|()| check_attempts(self.max_attempts));
        checked.map_err(|error| error.on(&self.name))?;
        if let Some((key, _)) = &self.unique {
            check_name("unique key", key, 1)?;
            if key.starts_with(RUN_KEY) {
                return invalid(format!(
                    "the unique key {key:?}; allowed are those that do not begin with {RUN_KEY:?}, as those of runs of tasks do"
                ));
            }
        }
        if self.unique.is_some() && self.idempotency_key.is_some() {
            return invalid(
                "the job has a unique key and an idempotency key; allowed is one of them"
                    .to_owned(),
            );
        }
        if let Some(key) = &self.idempotency_key {
            check_name("idempotency key", key, 1)?;
        }
        if let Some(key) = &self.group {
            check_name("group", key, 1)?;
        }
        let tags = self.refused_tag.as_deref().map_or(Ok(()), check_tag);
        let checked = tags.and_then(|()| self.headers.check());
        checked.map_err(|error| error.on(&self.name))
    }

    pub(crate) fn row(&self) -> super::NewJob {
        super::NewJob {
            name: self.name.clone(),
            payload: self.payload.clone(),
            priority: self.priority.number(),
            at: self.at,
            delay: micros(self.delay),
            ttl: micros(self.ttl),
            max_attempts: i64::from(self.max_attempts),
            group: self.lane().unwrap_or_default().to_owned(),
            headers: self.headers.clone(),
        }
    }

    /// The row of a job that is pushed now, by whoever calls this.
    pub(crate) fn pushed_row(&self, queue: &str) -> super::NewJob {
        let mut row = self.row();
        telemetry::pushes(queue, &mut row.headers);
        row
    }

    pub(crate) fn keys(&self) -> super::Keys {
        let (unique_key, unique) = self.unique.clone().unzip();
        super::Keys {
            unique_key: unique_key.unwrap_or_default(),
            unique: unique.unwrap_or(Unique::Skip),
            idempotency_key: self.idempotency_key.clone().unwrap_or_default(),
        }
    }
}

/// A point in time as it is stored; one before 1970 is long past as well.
pub(crate) fn micros_of(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, micros)
}

fn refused(message: String) -> Error {
    Error::new(ErrorKind::Invalid, "check", message)
}

/// Checks that a payload is JSON.
pub(crate) fn check_json(payload: &str) -> Result<()> {
    let parsed = serde_json::from_str::<Value>(payload);
    parsed.map(drop).map_err(|error| {
        refused(format!(
            "the payload is not JSON: {:?} error at line {}, column {}; allowed is one value, nested at most 128 levels deep",
            error.classify(),
            error.line(),
            error.column()
        ))
    })
}

/// Checks the length of a payload.
pub(crate) fn check_payload(payload: &str, most: usize) -> Result<()> {
    let bytes = payload.len();
    if bytes > most {
        let message = format!("the payload has {bytes} bytes; allowed are at most {most} bytes");
        return Err(refused(message));
    }
    Ok(())
}

/// Checks when a job is due.
pub(crate) fn check_at(at: i64) -> Result<()> {
    if at > LAST_TIME {
        let message = "a time after the year 9999; allowed are earlier times";
        return Err(refused(message.to_owned()));
    }
    Ok(())
}

/// Checks how often a job may be delivered.
pub(crate) fn check_attempts(attempts: u32) -> Result<()> {
    if !(1..=MAX_ATTEMPTS).contains(&attempts) {
        let message = format!("max_attempts of {attempts}; allowed are 1 to 1,000,000");
        return Err(refused(message));
    }
    Ok(())
}

/// Without the payload.
impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("name", &self.name)
            .field("priority", &self.priority)
            .field("delay", &self.delay)
            .field("max_attempts", &self.max_attempts)
            .field("unique", &self.unique)
            .field("group", &self.group)
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}

/// The result of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// The number of the job.
    pub id: i64,
    /// Whether it is new.
    pub how: How,
}

/// Whether a push created a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum How {
    /// It is a new job.
    New,
    /// The job with the same unique or idempotency key stays as it is.
    Existing,
    /// The job with the same unique key was changed.
    Changed,
    /// It should have been changed, but it is running: nothing was done.
    Running,
}
