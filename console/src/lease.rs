//! `lockapi lease`: leases, permits, leaders and leased mutexes.

use std::time::Duration;

use clap::Subcommand;
use lockapi::Key;
use lockapi::admin::HeldLease;
use serde::Serialize;

use crate::arguments::Global;
use crate::common::{Extent, Why, with_backend};
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::output::{Entry, plain, seconds, spoken};
use crate::values::key;

/// See who holds leases, permits and leaderships, and take them away
#[derive(Debug, Subcommand)]
pub(crate) enum Lease {
    /// List who holds which lease, permit or leadership
    List {
        /// Of this key only
        #[arg(value_parser = key)]
        key: Option<Key>,
        #[command(flatten)]
        extent: Extent,
    },
    /// Take a lease, its permits and its leadership from whoever holds them; they are free at once, and former holders
    /// hear of it with their next renewal
    Release {
        /// The lease
        #[arg(value_parser = key)]
        key: Key,
        #[command(flatten)]
        why: Why,
    },
}

#[derive(Debug, Serialize)]
struct Held {
    namespace: String,
    key: String,
    kind: &'static str,
    /// Of a permit.
    #[serde(skip_serializing_if = "Option::is_none")]
    permit: Option<i64>,
    owner: String,
    data: String,
    fence: String,
    #[serde(rename = "held_seconds", serialize_with = "seconds")]
    since: Duration,
    #[serde(rename = "remaining_seconds", serialize_with = "seconds")]
    remaining: Duration,
}

impl From<HeldLease> for Held {
    fn from(lease: HeldLease) -> Self {
        let kind = match lease.slot {
            0 => "lease",
            -1 => "leader",
            -2 => "leased mutex",
            _ => "permit",
        };
        Self {
            namespace: lease.namespace,
            key: lease.key,
            kind,
            permit: (lease.slot > 0).then_some(lease.slot),
            owner: lease.owner,
            data: lease.data,
            fence: lease.fence.to_string(),
            since: lease.held_for,
            remaining: lease.remaining,
        }
    }
}

impl Entry for Held {
    const COLUMNS: &'static [&'static str] =
        &["key", "kind", "owner", "held", "remaining", "fence"];

    fn cells(&self) -> Vec<String> {
        let kind = match self.permit {
            Some(number) => format!("permit {number}"),
            None => self.kind.to_owned(),
        };
        vec![
            self.key.clone(),
            kind,
            self.owner.clone(),
            spoken(self.since),
            spoken(self.remaining),
            self.fence.clone(),
        ]
    }
}

impl Lease {
    pub(crate) async fn run(self, global: &Global) -> Result<Exit> {
        with_backend(global, async |backend| {
            match self {
                Self::List { key, extent } => {
                    let leases = backend.inspector().leases(&extent.filter(key)).await?;
                    let leases: Vec<Held> = leases.into_iter().map(Held::from).collect();
                    global.output().entries(&leases)?;
                }
                Self::Release { key, why } => {
                    let owners = backend.operator().release_lease(key.clone(), &why.reason).await?;
                    if owners.is_empty() {
                        return Err(Failure::new(Exit::Absent, format!("nobody holds {key}"))
                            .advise("`lockapi lease list` shows who holds what, and `lockapi lock list` shows mutexes."));
                    }
                    global.output().value(&owners, |owners| {
                        let line = |owner: &String| format!("taken from {}", plain(owner));
                        owners.iter().map(line).collect::<Vec<_>>().join("\n")
                    })?;
                }
            }
            Ok(Exit::Success)
        })
        .await
    }
}
