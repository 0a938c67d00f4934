//! Pushing a job.

use std::io::Read;
use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};
use lockapi::Backend;
use lockapi::queue::{How, Job, MAX_PAYLOAD_BYTES, Priority, Unique};
use serde::Serialize;

use crate::arguments::Global;
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::values::duration;

/// A job to push.
#[derive(Debug, Args)]
pub(crate) struct Push {
    /// The queue
    queue: String,
    /// What kind of job it is: its workers choose the handler by it
    name: String,
    /// The payload, as JSON; `-` reads it from standard input
    #[arg(default_value = "null", allow_hyphen_values = true)]
    payload: String,
    /// Not before this time has passed
    #[arg(long, value_name = "TIME", value_parser = duration)]
    delay: Option<Duration>,
    /// Not before this point in time, such as 2030-01-01T03:00:00Z
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_rfc3339, conflicts_with = "delay")]
    at: Option<SystemTime>,
    /// Before or after others
    #[arg(long, value_enum, default_value_t = Level::Normal)]
    priority: Level,
    /// How often it is delivered at most
    #[arg(long, value_name = "NUMBER")]
    max_attempts: Option<u32>,
    /// Drop it if no worker has taken it when this time has passed since it was due
    #[arg(long, value_name = "TIME", value_parser = duration)]
    ttl: Option<Duration>,
    /// Not if a job with this key waits or runs
    #[arg(long, value_name = "KEY")]
    unique: Option<String>,
    /// Finds the job of the first push with this key, for a day
    #[arg(long, value_name = "KEY", conflicts_with = "unique")]
    idempotency_key: Option<String>,
    /// With a header, such as traceparent=00-…; as often as there are headers
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Level {
    /// Before all others
    Urgent,
    /// Before the normal ones
    High,
    /// The usual one
    Normal,
    /// After the normal ones
    Low,
}

impl From<Level> for Priority {
    fn from(level: Level) -> Self {
        match level {
            Level::Urgent => Self::Urgent,
            Level::High => Self::High,
            Level::Normal => Self::Normal,
            Level::Low => Self::Low,
        }
    }
}

impl Push {
    pub(super) async fn run(self, global: &Global, backend: &dyn Backend) -> Result<Exit> {
        let payload = match self.payload.as_str() {
            "-" => read_input()?,
            _ => self.payload,
        };
        let mut job = Job::json(self.name, payload)?.priority(self.priority.into());
        if let Some(delay) = self.delay {
            job = job.delay(delay);
        }
        if let Some(at) = self.at {
            job = job.at(at);
        }
        if let Some(attempts) = self.max_attempts {
            job = job.max_attempts(attempts);
        }
        if let Some(ttl) = self.ttl {
            job = job.ttl(ttl);
        }
        if let Some(key) = self.unique {
            job = job.unique(key, Unique::Skip);
        }
        if let Some(key) = self.idempotency_key {
            job = job.idempotency_key(key);
        }
        for (name, value) in self.headers {
            job = job.header(name, value);
        }
        let pushed = backend.queue(&self.queue)?.push(job).await?;
        let pushed = Pushed {
            id: pushed.id.to_string(),
            new: pushed.how == How::New,
        };
        global.output().value(&pushed, |pushed| pushed.id.clone())?;
        Ok(Exit::Success)
    }
}

#[derive(Debug, Serialize)]
struct Pushed {
    id: String,
    new: bool,
}

/// A name with its value, which may have further signs of equality.
fn header(text: &str) -> std::result::Result<(String, String), String> {
    let pair = text.split_once('=');
    let pair = pair.map(|(name, value)| (name.to_owned(), value.to_owned()));
    pair.ok_or_else(|| {
        format!("a header of {text:?}; allowed is a name, an equals sign and a value")
    })
}

pub(super) fn read_input() -> Result<String> {
    let mut text = String::new();
    let most = MAX_PAYLOAD_BYTES as u64 + 1;
    let read = std::io::stdin().take(most).read_to_string(&mut text);
    read.map_err(|error| {
        Failure::usage(format!(
            "the payload cannot be read from standard input: {error}"
        ))
    })?;
    Ok(text)
}
