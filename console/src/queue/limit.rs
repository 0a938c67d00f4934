//! `lockapi queue limit`.

use std::fmt::Write;
use std::time::Duration;

use clap::Args;
use lockapi::Backend;
use lockapi::limit::Quota;
use lockapi::queue::{CurrentLimit, JobLimit};
use serde::Serialize;

use crate::arguments::Global;
use crate::common::{Why, recorded_where};
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::output::seconds;
use crate::present;

/// A limit.
#[derive(Debug, Args)]
pub(crate) struct Limit {
    /// The queue
    queue: String,
    /// Only the jobs of this group; what is not given is as in other groups
    #[arg(long)]
    group: Option<String>,
    /// At most so many jobs run at once; of a group 0 pauses it
    #[arg(long, value_name = "JOBS", required_unless_present_any = ["rate", "clear"])]
    running: Option<u32>,
    /// So many jobs are claimed in a time, such as 10/s, or 100/1h,5 for at most five at once
    #[arg(long, value_name = "JOBS/TIME", value_parser = crate::values::quota)]
    rate: Option<Quota>,
    /// Take the limit away
    #[arg(long, conflicts_with_all = ["running", "rate"])]
    clear: bool,
    #[command(flatten)]
    why: Why,
}

impl Limit {
    pub(crate) async fn run(self, global: &Global, backend: &dyn Backend) -> Result<()> {
        let verb = if self.clear { "unlimit" } else { "limit" };
        let (kind, subject) = match &self.group {
            None => ("queue", self.queue.clone()),
            Some(group) => ("group", format!("{}/{group}", self.queue)),
        };
        let action = format!("{verb} {kind}");
        // Who limits a queue may do so before its first job. Whether a group has a limit cannot be read.
        let clears = self.clear && self.group.is_none();
        if !clears {
            super::look::tell_new(backend, &self.queue).await;
        }
        let present = async |backend: &dyn Backend| {
            Ok(!clears || present::queue(backend, &self.queue).await?)
        };
        let named = (&*action, &*subject);
        let done = recorded_where(backend, present, named, &self.why, async |backend| {
            let queue = backend.queue(&self.queue)?;
            match (&self.group, self.limit()) {
                (Some(group), limit) => queue.set_group_limit(group, limit).await,
                (None, Some(limit)) => queue.set_limit(limit).await,
                (None, None) => queue.clear_limit().await,
            }
        });
        if done.await?.is_none() {
            let unknown = super::look::unknown(backend, &self.queue);
            return Err(Failure::new(Exit::Absent, unknown));
        }
        global.output().done(&action, &subject)
    }

    /// None to clear it.
    fn limit(&self) -> Option<JobLimit> {
        if self.clear {
            return None;
        }
        let mut limit = JobLimit::default();
        if let Some(running) = self.running {
            limit = limit.running(running);
        }
        if let Some(rate) = self.rate {
            limit = limit.rate(rate);
        }
        Some(limit)
    }
}

/// The limit of a queue.
#[derive(Debug, Serialize)]
pub(super) struct Limited {
    #[serde(skip_serializing_if = "Option::is_none")]
    running: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    taken: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<Rate>,
}

#[derive(Debug, Serialize)]
struct Rate {
    jobs: u64,
    #[serde(rename = "period_seconds", serialize_with = "seconds")]
    period: Duration,
    burst: u64,
}

impl From<CurrentLimit> for Limited {
    fn from(current: CurrentLimit) -> Self {
        let running = current.limit.most_running();
        let rate = |quota: Quota| Rate {
            jobs: quota.permits(),
            period: quota.period(),
            burst: quota.limit(),
        };
        Self {
            running,
            taken: running.map(|_| current.running),
            rate: current.limit.quota().map(rate),
        }
    }
}

impl Limited {
    pub(super) fn words(&self) -> String {
        let mut words = "limit:".to_owned();
        if let (Some(running), Some(taken)) = (self.running, self.taken) {
            // Writing to a string cannot fail.
            let _ = write!(words, " {taken} of {running} run");
        }
        if let Some(rate) = &self.rate {
            let comma = if self.running.is_some() { "," } else { "" };
            let _ = write!(
                words,
                "{comma} {} are claimed in {:?}, {} at once",
                rate.jobs, rate.period, rate.burst
            );
        }
        words
    }
}
