//! Cancelling jobs.

use clap::Args;
use lockapi::Backend;
use lockapi::admin::MatchedJobs;
use serde::Serialize;

use super::jobs::Matching;
use super::no_job;
use crate::arguments::Global;
use crate::common::Why;
use crate::failure::Result;

/// A job, or all that match.
#[derive(Debug, Args)]
pub(crate) struct Cancel {
    /// The queue
    queue: String,
    /// The number of the job
    #[arg(required_unless_present = "all", conflicts_with_all = ["all", "name", "state", "group", "tag"])]
    id: Option<i64>,
    /// All that match, or without --name, --state, --group and --tag all of the queue
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    those: Matching,
    #[command(flatten)]
    why: Why,
}

#[derive(Debug, Serialize)]
struct Cancelled {
    cancelled: u64,
    locked: u64,
}

impl Cancelled {
    fn words(&self) -> String {
        let Self { cancelled, locked } = self;
        match locked {
            0 => format!("{cancelled} cancelled"),
            _ => format!("{cancelled} cancelled; {locked} are locked by transactions: try again"),
        }
    }
}

impl From<MatchedJobs> for Cancelled {
    fn from(matched: MatchedJobs) -> Self {
        Self {
            cancelled: matched.changed,
            locked: matched.locked,
        }
    }
}

impl Cancel {
    pub(super) async fn run(self, global: &Global, backend: &dyn Backend) -> Result<()> {
        let (operator, reason) = (backend.operator(), &*self.why.reason);
        if let Some(id) = self.id {
            if !operator.cancel_job(&self.queue, id, reason).await? {
                return Err(no_job(&self.queue, id));
            }
            return global.output().done("cancel job", &id.to_string());
        }
        let filter = self.those.filter(&self.queue);
        let matched = operator.cancel_jobs(&filter, reason).await?;
        global
            .output()
            .value(&Cancelled::from(matched), Cancelled::words)
    }
}
