//! `lockapi queue`: jobs.

use std::time::Duration;

use clap::{Args, Subcommand};
use lockapi::admin::Filter;
use lockapi::queue::Statistics;
use lockapi::{Backend, Error};
use serde::Serialize;

use crate::arguments::Global;
use crate::common::{Extent, Why, recorded_where, with_backend};
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::output::spoken;
use crate::present;

mod cancel;
mod edit;
mod entries;
mod history;
mod jobs;
mod limit;
mod look;
mod pause;
mod push;

use cancel::Cancel;
use edit::Edit;
use entries::{Dead, Running, Shown};
use history::History;
use jobs::Jobs;
use limit::Limit;
use pause::{Drain, Resume, Stop};
use push::Push;

/// See what is in queues, push, cancel and revive jobs, pause and purge
#[derive(Debug, Subcommand)]
pub(crate) enum Queue {
    /// List queues that have jobs or dead letters, or were paused or resumed
    List {
        /// With how many jobs each has
        #[arg(long, conflicts_with = "everywhere")]
        counts: bool,
        #[command(flatten)]
        extent: Extent,
    },
    /// List jobs that wait or run, in the order in which they are due
    Jobs(Jobs),
    /// Show a job, wherever it is, with its payload, its headers, the outcomes of its attempts and its result
    Job {
        /// The number of the job
        id: i64,
        /// Without the payload, the headers and the result
        #[arg(long)]
        masked: bool,
    },
    /// Count the jobs of a queue
    Show {
        /// The queue
        queue: String,
    },
    /// Show what became of attempts, and how long they waited and ran, by the minute or by the hour
    History(History),
    /// List jobs that run, and on which workers
    Running {
        /// Of this queue only
        queue: Option<String>,
        #[command(flatten)]
        extent: Extent,
    },
    /// Push a job; prints its number
    Push(Push),
    /// Cancel a job, waiting or running, or all that match
    Cancel(Cancel),
    /// Change a job that waits: when it is due, its priority, attempts or payload
    Edit(Edit),
    /// List dead letters, the oldest first
    Dead {
        /// The queue
        queue: String,
        /// Of those numbered above this one
        #[arg(long, value_name = "ID", default_value_t = 0)]
        after: i64,
        /// At most so many, up to 1000
        #[arg(long, value_name = "NUMBER", default_value_t = 100)]
        limit: usize,
        /// With payloads and headers
        #[arg(long)]
        payloads: bool,
    },
    /// Put dead letters back into the queue, with all attempts ahead of them
    Redrive(Those),
    /// Delete dead letters
    Discard(Those),
    /// Stop delivering jobs; they are still accepted, and those that run go on
    Pause(Stop),
    /// Pause, and wait until no job runs any more; exits with 120 if some still do after the timeout
    Drain(Drain),
    /// Deliver jobs again
    Resume(Resume),
    /// Limit how many jobs run at once, and how often one is claimed, in all programs together
    Limit(Limit),
    /// Delete all jobs that wait; without --yes it only tells how many
    Purge {
        /// The queue
        queue: String,
        /// Do it
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        why: Why,
    },
}

/// Dead letters.
#[derive(Debug, Args)]
pub(crate) struct Those {
    /// The queue
    queue: String,
    /// The numbers of the jobs
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<i64>,
    /// All dead letters of the queue
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    why: Why,
}

impl Queue {
    pub(crate) async fn run(self, global: &Global) -> Result<Exit> {
        with_backend(global, async |backend| {
            self.perform(global, &**backend).await
        })
        .await
    }

    async fn perform(self, global: &Global, backend: &dyn Backend) -> Result<Exit> {
        let output = global.output();
        match self {
            Self::List { counts, extent } => look::list(global, backend, extent, counts).await?,
            Self::Jobs(jobs) => jobs.run(global, backend).await?,
            Self::Job { id, masked } => {
                let job = backend.inspector().job(id, !masked).await?;
                let job = job.ok_or_else(|| {
                    Failure::new(
                        Exit::Absent,
                        format!("there is no job {id}, or none any more"),
                    )
                })?;
                output.value(&Shown::new(job, backend.namespace()), Shown::words)?;
            }
            Self::Show { queue } => look::show(global, backend, &queue).await?,
            Self::Running { queue, extent } => {
                let filter = queue.map_or_else(Filter::new, Filter::queue);
                let running = backend.inspector().running(&extent.widen(filter)).await?;
                let running: Vec<Running> = running.into_iter().map(Running::from).collect();
                output.entries(&running)?;
            }
            Self::History(history) => history.run(global, backend).await?,
            Self::Push(push) => return push.run(global, backend).await,
            Self::Cancel(cancel) => cancel.run(global, backend).await?,
            Self::Edit(edit) => edit.run(global, backend).await?,
            Self::Dead {
                queue,
                after,
                limit,
                payloads,
            } => {
                let dead = backend.queue(&queue)?.dead_letters(after, limit).await?;
                if dead.is_empty() {
                    look::look_first(backend, &queue).await;
                }
                let dead: Vec<Dead> = dead
                    .into_iter()
                    .map(|letter| Dead::new(letter, payloads))
                    .collect();
                output.entries(&dead)?;
            }
            Self::Redrive(those) => {
                let redrive =
                    async |queue: &dyn lockapi::Queue| queue.redrive(those.ids.clone()).await;
                let redriven = those.act(backend, "redrive", redrive).await?;
                output.value(&Redriven { redriven }, |it| {
                    format!("{} put back", it.redriven)
                })?;
            }
            Self::Discard(those) => {
                let discard =
                    async |queue: &dyn lockapi::Queue| queue.discard(those.ids.clone()).await;
                let discarded = those.act(backend, "discard", discard).await?;
                output.value(&Discarded { discarded }, |it| {
                    format!("{} deleted", it.discarded)
                })?;
            }
            Self::Pause(stop) => stop.run(global, backend).await?,
            Self::Drain(drain) => return drain.run(global, backend).await,
            Self::Resume(resume) => resume.run(global, backend).await?,
            Self::Limit(limit) => limit.run(global, backend).await?,
            Self::Purge { queue, yes, why } => {
                let handle = backend.queue(&queue)?;
                look::look_first(backend, &queue).await;
                let purged = if yes {
                    let present =
                        async |backend: &dyn Backend| present::waiting(backend, &queue).await;
                    let purge = async |backend: &dyn Backend| backend.queue(&queue)?.purge().await;
                    let named = ("purge queue", &*queue);
                    let purged = recorded_where(backend, present, named, &why, purge);
                    Purged {
                        jobs: purged.await?.unwrap_or_default(),
                        or_more: false,
                        dry_run: false,
                    }
                } else {
                    Purged::would(&handle.statistics().await?)
                };
                output.value(&purged, Purged::words)?;
            }
        }
        Ok(Exit::Success)
    }
}

fn no_job(queue: &str, id: i64) -> Failure {
    Failure::new(
        Exit::Absent,
        format!("no job {id} waits or runs in {queue:?}"),
    )
    .advise("It may have ended, or be in another queue or namespace.")
}

/// What a purge did, or would do.
#[derive(Debug, Serialize)]
struct Purged {
    jobs: u64,
    or_more: bool,
    dry_run: bool,
}

impl Purged {
    fn would(statistics: &Statistics) -> Self {
        let (ready, delayed) = (statistics.ready, statistics.delayed);
        Self {
            jobs: ready.count + delayed.count,
            or_more: ready.more || delayed.more,
            dry_run: true,
        }
    }

    fn words(&self) -> String {
        let more = if self.or_more { " or more" } else { "" };
        if self.dry_run {
            format!(
                "{}{more} jobs wait and would be deleted; --yes deletes them",
                self.jobs
            )
        } else {
            format!("{} jobs were deleted", self.jobs)
        }
    }
}

impl Those {
    /// What the audit log has.
    fn target(&self) -> String {
        let ids: Vec<String> = self.ids.iter().map(i64::to_string).collect();
        let which = if self.all {
            "all".to_owned()
        } else {
            ids.join(", ")
        };
        let target = format!("{which} of {}", self.queue);
        // The log has room for so much of it.
        target.chars().take(500).collect()
    }

    /// Does something to them, and answers to how many.
    async fn act(
        &self,
        backend: &dyn Backend,
        action: &str,
        act: impl AsyncFn(&dyn lockapi::Queue) -> Result<u64, Error>,
    ) -> Result<u64> {
        let target = self.target();
        let present = async |backend: &dyn Backend| {
            present::dead_letters(backend, &self.queue, &self.ids).await
        };
        let act = async |backend: &dyn Backend| act(&*backend.queue(&self.queue)?).await;
        let done = recorded_where(backend, present, (action, &target), &self.why, act);
        let count = done.await?.unwrap_or_default();
        if count == 0 && !self.all {
            let none = "none of these are dead letters of the queue";
            return Err(Failure::new(Exit::Absent, none).advise(
                "`lockapi queue dead QUEUE` lists them. One whose unique key is taken stays.",
            ));
        }
        Ok(count)
    }
}

/// How many dead letters were put back.
#[derive(Debug, Serialize)]
struct Redriven {
    redriven: u64,
}

/// How many dead letters were deleted.
#[derive(Debug, Serialize)]
struct Discarded {
    discarded: u64,
}

fn waited(oldest: Option<Duration>) -> String {
    oldest.map_or_else(String::new, |oldest| {
        format!(", the oldest for {}", spoken(oldest))
    })
}
