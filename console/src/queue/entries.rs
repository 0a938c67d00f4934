//! What is shown of queues and jobs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;
use std::time::Duration;

use lockapi::admin::{FoundQueue, JobDetails, JobPage, ListedJob, PausedName, RunningJob};
use lockapi::queue::{AttemptError, DeadLetter, Headers, Progress, Statistics, Tally};
use serde::Serialize;
use serde_json::value::RawValue;

use super::limit::Limited;
use crate::output::{Entry, maybe_seconds, plain, seconds, spoken, time};

/// How many jobs a queue has.
#[derive(Debug, Serialize)]
pub(super) struct Counts {
    pub(super) ready: Count,
    pub(super) running: Count,
    pub(super) delayed: Count,
    pub(super) dead: Count,
    #[serde(rename = "oldest_seconds", serialize_with = "maybe_seconds")]
    pub(super) oldest: Option<Duration>,
    pub(super) paused: bool,
    #[serde(rename = "resumes_in_seconds", serialize_with = "maybe_seconds")]
    resumes_in: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused_names: Option<Vec<Held>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit: Option<Limited>,
}

/// A name of jobs that is paused.
#[derive(Debug, Serialize)]
struct Held {
    name: String,
    #[serde(rename = "resumes_in_seconds", serialize_with = "maybe_seconds")]
    resumes_in: Option<Duration>,
}

#[derive(Debug, Serialize)]
pub(super) struct Count {
    count: u64,
    or_more: bool,
}

impl From<Tally> for Count {
    fn from(tally: Tally) -> Self {
        Self {
            count: tally.count,
            or_more: tally.more,
        }
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let more = if self.or_more { " or more" } else { "" };
        write!(f, "{}{more}", self.count)
    }
}

impl From<&Statistics> for Counts {
    fn from(statistics: &Statistics) -> Self {
        Self {
            ready: statistics.ready.into(),
            running: statistics.running.into(),
            delayed: statistics.delayed.into(),
            dead: statistics.dead.into(),
            oldest: statistics.oldest,
            paused: statistics.paused,
            resumes_in: statistics.resumes_in,
            paused_names: None,
            limit: None,
        }
    }
}

impl Counts {
    pub(super) fn with_names(mut self, names: Vec<PausedName>) -> Self {
        let held = names.into_iter().map(|one| Held {
            name: one.name,
            resumes_in: one.resumes_in,
        });
        self.paused_names = Some(held.collect());
        self
    }

    pub(super) fn words(&self) -> String {
        let paused = match (self.paused, self.resumes_in) {
            (false, _) => String::new(),
            (true, None) => "paused: nothing is delivered\n".to_owned(),
            (true, Some(left)) => format!("paused for {}: nothing is delivered\n", spoken(left)),
        };
        let mut paused = paused;
        for one in self.paused_names.iter().flatten() {
            let time = one
                .resumes_in
                .map_or_else(String::new, |left| format!(" for {}", spoken(left)));
            let name = plain(&one.name);
            let _ok = writeln!(paused, "paused jobs {name}{time}: the others are delivered");
        }
        let limit = self.limit.as_ref();
        let limit = limit.map_or_else(String::new, |limit| format!("{}\n", limit.words()));
        format!(
            "{paused}{limit}ready    {}{}\nrunning  {}\ndelayed  {}\ndead     {}",
            self.ready,
            super::waited(self.oldest),
            self.running,
            self.delayed,
            self.dead
        )
    }
}

/// A queue.
#[derive(Debug, Serialize)]
pub(super) struct Listed {
    namespace: String,
    name: String,
    paused: bool,
}

pub(super) fn state(paused: bool) -> &'static str {
    if paused { "paused" } else { "open" }
}

impl From<FoundQueue> for Listed {
    fn from(queue: FoundQueue) -> Self {
        Self {
            namespace: queue.namespace,
            name: queue.name,
            paused: queue.paused,
        }
    }
}

impl Entry for Listed {
    const COLUMNS: &'static [&'static str] = &["queue", "namespace", "state"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            self.namespace.clone(),
            state(self.paused).to_owned(),
        ]
    }
}

/// A page of jobs.
#[derive(Debug, Serialize)]
pub(super) struct Page {
    pub(super) jobs: Vec<Shown>,
    next: Option<String>,
}

impl Page {
    pub(super) fn new(page: JobPage, namespace: &str, queue: &str) -> Self {
        let jobs = page.jobs.into_iter();
        Self {
            jobs: jobs
                .map(|job| Shown::listed(job, namespace, queue))
                .collect(),
            next: page.next.map(|place| place.to_string()),
        }
    }

    /// On standard error: it is no row of the table.
    pub(super) fn tell_next(&self) {
        if let Some(next) = &self.next {
            let _told = writeln!(std::io::stderr(), "There may be more: --after {next}");
        }
    }
}

/// A job.
#[derive(Debug, Serialize)]
pub(super) struct Shown {
    id: String,
    namespace: String,
    queue: String,
    name: String,
    state: String,
    priority: String,
    run_at: String,
    created_at: String,
    started_at: Option<String>,
    ended_at: Option<String>,
    attempt: i64,
    max_attempts: i64,
    worker: Option<String>,
    error: Option<String>,
    unique_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_bytes: Option<i64>,
    progress: Option<Told>,
    #[serde(rename = "lease_seconds", serialize_with = "maybe_seconds")]
    lease: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    attempts_failed: Vec<Failed>,
}

/// What a handler told last.
#[derive(Debug, Serialize)]
struct Told {
    fraction: f64,
    #[serde(skip)]
    percent: i64,
    note: String,
    reported_at: String,
}

impl From<Progress> for Told {
    fn from(progress: Progress) -> Self {
        Self {
            fraction: progress.fraction(),
            percent: progress.percent(),
            note: progress.note().to_owned(),
            reported_at: time(progress.reported_at()),
        }
    }
}

impl Shown {
    fn listed(job: ListedJob, namespace: &str, queue: &str) -> Self {
        Self {
            id: job.id.to_string(),
            namespace: namespace.to_owned(),
            queue: queue.to_owned(),
            name: job.name,
            state: job.state.to_string(),
            priority: format!("{:?}", job.priority).to_lowercase(),
            run_at: time(job.run_at),
            created_at: time(job.created_at),
            started_at: job.started_at.map(time),
            ended_at: job.ended_at.map(time),
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            worker: job.worker,
            error: job.error,
            unique_key: None,
            payload_bytes: None,
            progress: job.progress.map(Told::from),
            lease: job.lease_left,
            payload: None,
            result: None,
            headers: BTreeMap::new(),
            attempts_failed: Vec::new(),
        }
    }

    /// A payload or a result that was cut is no JSON any more, and is left out.
    pub(super) fn new(job: JobDetails, namespace: &str) -> Self {
        let raw = |text: String| RawValue::from_string(text).ok();
        Self {
            unique_key: job.unique_key,
            payload_bytes: Some(job.payload_bytes),
            payload: job.payload.and_then(raw),
            result: job.result.and_then(raw),
            headers: owned(&job.headers),
            attempts_failed: job.history.into_iter().map(Failed::from).collect(),
            ..Self::listed(job.job, namespace, &job.queue)
        }
    }

    pub(super) fn words(&self) -> String {
        let line = |name: &str, value: &str| format!("{name:<10}{}", plain(value));
        let attempt = format!("{} of {}", self.attempt, self.max_attempts);
        let mut lines = vec![
            line("job", &self.id),
            line("name", &self.name),
            line("queue", &self.queue),
            line("state", &self.state),
            line("priority", &self.priority),
            line("attempt", &attempt),
            line("pushed", &self.created_at),
            line("due", &self.run_at),
        ];
        let lease = self.lease.map(spoken);
        let progress = self.progress.as_ref().map(|told| {
            let words = format!("{}% {}", told.percent, told.note);
            format!("{}, told at {}", words.trim_end(), told.reported_at)
        });
        let more = [
            ("started", &self.started_at),
            ("ended", &self.ended_at),
            ("worker", &self.worker),
            ("lease", &lease),
            ("progress", &progress),
            ("unique", &self.unique_key),
            ("error", &self.error),
        ];
        for (name, value) in more {
            lines.extend(value.as_ref().map(|value| line(name, value)));
        }
        for (name, value) in &self.headers {
            lines.push(line("header", &format!("{name}={value}")));
        }
        for failed in &self.attempts_failed {
            let told = format!(
                "{} at {} on {}: {}",
                failed.attempt, failed.at, failed.worker, failed.error
            );
            lines.push(line("failed", &told));
        }
        lines.push(if let Some(payload) = &self.payload {
            line("payload", payload.get())
        } else {
            let bytes = self.payload_bytes.unwrap_or_default();
            format!("{:<10}{bytes} bytes", "payload")
        });
        lines.extend(self.result.as_ref().map(|it| line("result", it.get())));
        lines.join("\n")
    }
}

impl Entry for Shown {
    const COLUMNS: &'static [&'static str] = &[
        "id", "name", "state", "priority", "due", "attempt", "progress", "worker", "error",
    ];

    fn cells(&self) -> Vec<String> {
        let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        vec![
            self.id.clone(),
            self.name.clone(),
            self.state.clone(),
            self.priority.clone(),
            self.run_at.clone(),
            format!("{}/{}", self.attempt, self.max_attempts),
            known(
                &self
                    .progress
                    .as_ref()
                    .map(|told| format!("{}%", told.percent)),
            ),
            known(&self.worker),
            known(&self.error),
        ]
    }
}

fn owned(headers: &Headers) -> BTreeMap<String, String> {
    let headers = headers.iter();
    headers
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// A job that runs.
#[derive(Debug, Serialize)]
pub(super) struct Running {
    id: String,
    namespace: String,
    queue: String,
    name: String,
    worker: String,
    attempt: i64,
    #[serde(rename = "runs_seconds", serialize_with = "seconds")]
    runs: Duration,
    #[serde(rename = "lease_seconds", serialize_with = "seconds")]
    lease: Duration,
}

impl From<RunningJob> for Running {
    fn from(job: RunningJob) -> Self {
        Self {
            id: job.id.to_string(),
            namespace: job.namespace,
            queue: job.queue,
            name: job.name,
            worker: job.worker,
            attempt: job.attempt,
            runs: job.runs_for,
            lease: job.lease_left,
        }
    }
}

impl Entry for Running {
    const COLUMNS: &'static [&'static str] =
        &["id", "queue", "name", "worker", "attempt", "runs", "lease"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.id.clone(),
            self.queue.clone(),
            self.name.clone(),
            self.worker.clone(),
            self.attempt.to_string(),
            spoken(self.runs),
            spoken(self.lease),
        ]
    }
}

/// A dead letter.
#[derive(Debug, Serialize)]
pub(super) struct Dead {
    id: String,
    name: String,
    error: String,
    attempts: u32,
    worker: String,
    created_at: String,
    failed_at: String,
    attempts_failed: Vec<Failed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
struct Failed {
    attempt: u32,
    at: String,
    worker: String,
    error: String,
}

impl From<AttemptError> for Failed {
    fn from(attempt: AttemptError) -> Self {
        Self {
            attempt: attempt.attempt,
            at: time(attempt.at),
            worker: attempt.worker,
            error: attempt.error,
        }
    }
}

impl Dead {
    pub(super) fn new(letter: DeadLetter, payload: bool) -> Self {
        let failed = letter.history.into_iter().map(Failed::from);
        Self {
            id: letter.id.to_string(),
            name: letter.name,
            error: letter.error,
            attempts: letter.attempts,
            worker: letter.worker,
            created_at: time(letter.created_at),
            failed_at: time(letter.failed_at),
            attempts_failed: failed.collect(),
            headers: if payload {
                owned(&letter.headers)
            } else {
                BTreeMap::new()
            },
            // What the server stores as JSON is JSON.
            payload: payload
                .then(|| RawValue::from_string(letter.payload).ok())
                .flatten(),
        }
    }
}

impl Entry for Dead {
    const COLUMNS: &'static [&'static str] =
        &["id", "name", "attempts", "failed at", "error", "payload"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.id.clone(),
            self.name.clone(),
            self.attempts.to_string(),
            self.failed_at.clone(),
            self.error.clone(),
            self.payload
                .as_ref()
                .map_or_else(|| "-".to_owned(), |payload| payload.get().to_owned()),
        ]
    }
}
