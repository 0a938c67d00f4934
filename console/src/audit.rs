//! `lockapi audit`: what operators did.

use clap::Args;
use lockapi::admin::AuditEntry;
use serde::Serialize;

use crate::arguments::Global;
use crate::common::{Extent, with_backend};
use crate::exit::Exit;
use crate::failure::Result;
use crate::output::{Entry, time};

/// List what operators did, who and why, the latest first
#[derive(Debug, Args)]
pub(crate) struct Audit {
    #[command(flatten)]
    extent: Extent,
}

#[derive(Debug, Serialize)]
struct Act {
    id: String,
    at: String,
    by: String,
    application: String,
    namespace: String,
    action: String,
    target: String,
    reason: String,
}

impl From<AuditEntry> for Act {
    fn from(audited: AuditEntry) -> Self {
        Self {
            id: audited.id.to_string(),
            at: time(audited.at),
            by: audited.by_user,
            application: audited.application,
            namespace: audited.namespace,
            action: audited.action,
            target: audited.target,
            reason: audited.reason,
        }
    }
}

impl Entry for Act {
    const COLUMNS: &'static [&'static str] = &["at", "by", "action", "target", "reason"];

    fn cells(&self) -> Vec<String> {
        [&self.at, &self.by, &self.action, &self.target, &self.reason]
            .into_iter()
            .cloned()
            .collect()
    }
}

impl Audit {
    pub(crate) async fn run(self, global: &Global) -> Result<Exit> {
        with_backend(global, async |backend| {
            let acts = backend.inspector().audit(&self.extent.filter(None)).await?;
            let acts: Vec<Act> = acts.into_iter().map(Act::from).collect();
            global.output().entries(&acts)?;
            Ok(Exit::Success)
        })
        .await
    }
}
