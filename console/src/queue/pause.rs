//! `lockapi queue pause`, `drain` and `resume`.

use std::time::Duration;

use clap::Args;
use lockapi::Backend;
use lockapi::queue::{Drained, JobLimit, Pause};
use serde::Serialize;

use crate::arguments::Global;
use crate::common::{Why, recorded, recorded_where};
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::present;

/// A pause.
#[derive(Debug, Args)]
pub(crate) struct Stop {
    /// The queue
    queue: String,
    /// Deliver them again after this time, such as 30s, 5m or 2h
    #[arg(long = "for", value_name = "TIME", value_parser = crate::values::duration, conflicts_with = "group")]
    time: Option<Duration>,
    /// Only the jobs of this group, by a limit of 0
    #[arg(long)]
    group: Option<String>,
    /// Only the jobs of this name
    #[arg(long, value_name = "JOB", conflicts_with = "group")]
    name: Option<String>,
    #[command(flatten)]
    why: Why,
}

/// Its end.
#[derive(Debug, Args)]
pub(crate) struct Resume {
    /// The queue
    queue: String,
    /// Only the jobs of this group; a limit of its own is taken away
    #[arg(long)]
    group: Option<String>,
    /// Only the jobs of this name
    #[arg(long, value_name = "JOB", conflicts_with = "group")]
    name: Option<String>,
    #[command(flatten)]
    why: Why,
}

/// A pause that waits.
#[derive(Debug, Args)]
pub(crate) struct Drain {
    /// The queue
    queue: String,
    /// Wait for so long at most, such as 30s, 5m or 2h
    #[arg(long, value_name = "TIME", value_parser = crate::values::duration, default_value = "5m")]
    timeout: Duration,
    /// Deliver jobs again after this time, which begins with the pause
    #[arg(long = "for", value_name = "TIME", value_parser = crate::values::duration)]
    time: Option<Duration>,
    #[command(flatten)]
    why: Why,
}

fn pause(time: Option<Duration>) -> Pause {
    time.map_or(Pause::UntilResumed, Pause::For)
}

impl Stop {
    pub(crate) async fn run(self, global: &Global, backend: &dyn Backend) -> Result<()> {
        let part = Part::new(self.group, self.name);
        let pause = pause(self.time);
        let (action, target) =
            set_paused(backend, (&self.queue, &part), Some(pause), &self.why).await?;
        global.output().done(&action, &target)
    }
}

impl Resume {
    pub(crate) async fn run(self, global: &Global, backend: &dyn Backend) -> Result<()> {
        let part = Part::new(self.group, self.name);
        let (action, target) = set_paused(backend, (&self.queue, &part), None, &self.why).await?;
        global.output().done(&action, &target)
    }
}

impl Drain {
    pub(crate) async fn run(self, global: &Global, backend: &dyn Backend) -> Result<Exit> {
        super::look::look_first(backend, &self.queue).await;
        let drained = recorded(
            backend,
            ("drain queue", &self.queue),
            &self.why,
            async |backend| {
                let queue = backend.queue(&self.queue)?;
                queue.drain(pause(self.time), self.timeout).await
            },
        )
        .await?;
        let ended = Ended::from(drained);
        global.output().value(&ended, Ended::words)?;
        Ok(ended.exit())
    }
}

/// What is paused of a queue.
enum Part {
    All,
    Group(String),
    Name(String),
}

impl Part {
    fn new(group: Option<String>, name: Option<String>) -> Self {
        let name = name.map_or(Self::All, Self::Name);
        group.map_or(name, Self::Group)
    }
}

/// Pauses or resumes a queue, or a part of it; answers what was done, and to what.
async fn set_paused(
    backend: &dyn Backend,
    (queue, part): (&str, &Part),
    pause: Option<Pause>,
    why: &Why,
) -> Result<(String, String)> {
    let verb = pause.map_or("resume", |_| "pause");
    let (kind, subject) = match part {
        Part::All => ("queue", queue.to_owned()),
        Part::Group(group) => ("group", format!("{queue}/{group}")),
        Part::Name(name) => ("name", format!("{queue}/{name}")),
    };
    // Who pauses a queue may do so before its first job. Whether a group has a limit cannot be read.
    let resumes = pause.is_none() && !matches!(part, Part::Group(_));
    if !resumes {
        super::look::look_first(backend, queue).await;
    }
    let present =
        async |backend: &dyn Backend| Ok(!resumes || present::queue(backend, queue).await?);
    let action = format!("{verb} {kind}");
    let done = recorded_where(
        backend,
        present,
        (&action, &subject),
        why,
        async |backend| {
            let queue = backend.queue(queue)?;
            match part {
                Part::All => queue.set_paused(pause).await,
                Part::Group(group) => {
                    let stopped = pause.map(|_| JobLimit::default().running(0));
                    queue.set_group_limit(group, stopped).await
                }
                Part::Name(name) => queue.set_name_paused(name, pause).await,
            }
        },
    );
    if done.await?.is_none() {
        let unknown = super::look::unknown(backend, queue);
        return Err(Failure::new(Exit::Absent, unknown));
    }
    Ok((action, subject))
}

/// How a drain has ended.
#[derive(Debug, Serialize)]
struct Ended {
    drained: bool,
    running: u64,
    or_more: bool,
    paused: bool,
}

impl From<Drained> for Ended {
    fn from(drained: Drained) -> Self {
        Self {
            drained: drained.is_complete(),
            running: drained.running.count,
            or_more: drained.running.more,
            paused: drained.paused,
        }
    }
}

impl Ended {
    fn words(&self) -> String {
        if self.drained {
            return "drained: no job runs, and none is delivered".to_owned();
        }
        if !self.paused {
            return "not drained: the queue was resumed".to_owned();
        }
        let more = if self.or_more { " or more" } else { "" };
        format!("not drained: {}{more} jobs still run", self.running)
    }

    fn exit(&self) -> Exit {
        if self.drained {
            Exit::Success
        } else if self.paused {
            Exit::Busy
        } else {
            Exit::Failed
        }
    }
}
