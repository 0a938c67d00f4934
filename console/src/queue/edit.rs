//! Changing a job that waits.

use std::time::SystemTime;

use clap::Args;
use lockapi::Backend;
use lockapi::admin::JobEdit;

use super::push::{Level, read_input};
use crate::arguments::Global;
use crate::common::Why;
use crate::exit::Exit;
use crate::failure::{Failure, Result};

/// A job that waits, and what is changed of it.
#[derive(Debug, Args)]
pub(crate) struct Edit {
    /// The queue
    queue: String,
    /// The number of the job
    id: i64,
    #[command(flatten)]
    changes: Changes,
    #[command(flatten)]
    why: Why,
}

/// At least one of them.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
struct Changes {
    /// Run it as soon as a worker has room
    #[arg(long)]
    now: bool,
    /// Not before this point in time, such as 2030-01-01T03:00:00Z
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_rfc3339, conflicts_with = "now")]
    at: Option<SystemTime>,
    /// Before or after others
    #[arg(long, value_enum)]
    priority: Option<Level>,
    /// How often it is delivered at most, with those that it has had
    #[arg(long, value_name = "NUMBER")]
    max_attempts: Option<u32>,
    /// The payload, as JSON; `-` reads it from standard input
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    payload: Option<String>,
}

impl TryFrom<Changes> for JobEdit {
    type Error = Failure;

    fn try_from(changes: Changes) -> Result<Self> {
        let mut edit = Self::new();
        if changes.now {
            edit = edit.now();
        }
        if let Some(at) = changes.at {
            edit = edit.at(at);
        }
        if let Some(level) = changes.priority {
            edit = edit.priority(level.into());
        }
        if let Some(attempts) = changes.max_attempts {
            edit = edit.max_attempts(attempts);
        }
        if let Some(payload) = changes.payload {
            edit = edit.payload(match payload.as_str() {
                "-" => read_input()?,
                _ => payload,
            });
        }
        Ok(edit)
    }
}

impl Edit {
    pub(super) async fn run(self, global: &Global, backend: &dyn Backend) -> Result<()> {
        let (queue, id) = (self.queue, self.id);
        let edit = self.changes.try_into()?;
        let operator = backend.operator();
        let edited = operator
            .edit_job(&queue, id, edit, &self.why.reason)
            .await?;
        if !edited {
            let absent = format!("no job {id} waits in {queue:?}");
            return Err(Failure::new(Exit::Absent, absent).advise(
                "It may run, have ended, or be in another queue or namespace; `lockapi queue job ID` tells.",
            ));
        }
        global.output().done("edit job", &id.to_string())
    }
}
