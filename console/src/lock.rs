//! `lockapi lock`: mutexes, and advisory locks of others.

use std::time::Duration;

use clap::Subcommand;
use lockapi::Key;
use lockapi::admin::{HeldLock, LockMode, Waiter};
use serde::Serialize;

use crate::arguments::Global;
use crate::common::{Extent, Why, with_backend};
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::output::{Entry, maybe_seconds, plain, spoken_or_unknown};
use crate::values::key;

/// See who holds and waits for mutexes, and end the sessions of holders
#[derive(Debug, Subcommand)]
pub(crate) enum Lock {
    /// List who holds which mutex
    List {
        /// Of this one only
        #[arg(value_parser = key)]
        key: Option<Key>,
        #[command(flatten)]
        extent: Extent,
    },
    /// List who waits for which mutex, and who is in the way
    Waits {
        /// For this one only
        #[arg(value_parser = key)]
        key: Option<Key>,
        #[command(flatten)]
        extent: Extent,
    },
    /// End the sessions that hold a mutex; their process loses all mutexes it holds
    Release {
        /// The mutex
        #[arg(value_parser = key)]
        key: Key,
        #[command(flatten)]
        why: Why,
    },
}

#[derive(Debug, Serialize)]
struct Held {
    namespace: Option<String>,
    name: String,
    mode: &'static str,
    owner: Option<String>,
    application: Option<String>,
    role: Option<String>,
    pid: Option<i64>,
    fence: Option<String>,
    #[serde(rename = "held_seconds", serialize_with = "maybe_seconds")]
    since: Option<Duration>,
}

impl From<HeldLock> for Held {
    fn from(lock: HeldLock) -> Self {
        Self {
            namespace: lock.namespace,
            name: lock.name,
            mode: if lock.mode == LockMode::Shared {
                "shared"
            } else {
                "exclusive"
            },
            owner: lock.owner,
            application: lock.application,
            role: lock.username,
            pid: lock.pid,
            fence: lock.fence.map(|fence| fence.to_string()),
            since: lock.held_for,
        }
    }
}

impl Entry for Held {
    const COLUMNS: &'static [&'static str] = &[
        "name",
        "mode",
        "held",
        "owner",
        "application",
        "role",
        "pid",
        "fence",
    ];

    fn cells(&self) -> Vec<String> {
        let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        vec![
            self.name.clone(),
            self.mode.to_owned(),
            spoken_or_unknown(self.since),
            text(&self.owner),
            text(&self.application),
            text(&self.role),
            self.pid
                .map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            text(&self.fence),
        ]
    }
}

#[derive(Debug, Serialize)]
struct Waits {
    namespace: Option<String>,
    name: String,
    mode: Option<String>,
    owner: Option<String>,
    application: Option<String>,
    role: Option<String>,
    pid: Option<i64>,
    statement: Option<String>,
    #[serde(rename = "waits_seconds", serialize_with = "maybe_seconds")]
    since: Option<Duration>,
    blockers: Vec<Blocker>,
}

#[derive(Debug, Serialize)]
struct Blocker {
    pid: i64,
    application: Option<String>,
    role: Option<String>,
    state: Option<String>,
    statement: Option<String>,
    #[serde(rename = "transaction_seconds", serialize_with = "maybe_seconds")]
    transaction: Option<Duration>,
}

impl From<Waiter> for Waits {
    fn from(waiter: Waiter) -> Self {
        let blocker = |it: lockapi::admin::Blocking| Blocker {
            pid: it.pid,
            application: it.application,
            role: it.username,
            state: it.state,
            statement: it.statement,
            transaction: it.transaction_age,
        };
        Self {
            namespace: waiter.namespace,
            name: waiter.name,
            mode: waiter.mode,
            owner: waiter.owner,
            application: waiter.application,
            role: waiter.username,
            pid: waiter.pid,
            statement: waiter.statement,
            since: waiter.waits_for,
            blockers: waiter.blockers.into_iter().map(blocker).collect(),
        }
    }
}

impl Entry for Waits {
    const COLUMNS: &'static [&'static str] = &["name", "waits", "who", "pid", "in the way"];

    fn cells(&self) -> Vec<String> {
        let who = self.owner.as_ref().or(self.application.as_ref());
        let blockers = self.blockers.iter().map(|it| {
            let state = it.state.as_deref().unwrap_or("unknown");
            format!(
                "{} ({}, {state})",
                it.pid,
                it.application.as_deref().unwrap_or("-")
            )
        });
        let blockers: Vec<String> = blockers.collect();
        vec![
            self.name.clone(),
            spoken_or_unknown(self.since),
            who.cloned().unwrap_or_else(|| "-".to_owned()),
            self.pid
                .map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            if blockers.is_empty() {
                "-".to_owned()
            } else {
                blockers.join(", ")
            },
        ]
    }
}

#[derive(Debug, Serialize)]
struct Ended {
    pid: i64,
    application: String,
    role: String,
}

impl Lock {
    pub(crate) async fn run(self, global: &Global) -> Result<Exit> {
        with_backend(global, async |backend| {
            match self {
                Self::List { key, extent } => {
                    let locks = backend.inspector().locks(&extent.filter(key)).await?;
                    let locks: Vec<Held> = locks.into_iter().map(Held::from).collect();
                    global.output().entries(&locks)?;
                }
                Self::Waits { key, extent } => {
                    let waiters = backend.inspector().waiters(&extent.filter(key)).await?;
                    let waiters: Vec<Waits> = waiters.into_iter().map(Waits::from).collect();
                    global.output().entries(&waiters)?;
                }
                Self::Release { key, why } => {
                    let ended = backend.operator().terminate_holder(key.clone(), &why.reason).await?;
                    if ended.is_empty() {
                        return Err(Failure::new(Exit::Absent, format!("nobody holds {key}")).advise(
                            "`lockapi lock list` shows who holds what, and `lockapi lease list` shows leases.",
                        ));
                    }
                    let ended = ended.into_iter().map(|it| Ended {
                        pid: it.pid,
                        application: it.application,
                        role: it.username,
                    });
                    let ended: Vec<Ended> = ended.collect();
                    global.output().value(&ended, |ended| {
                        let line = |it: &Ended| {
                            format!("ended session {} of {} ({})", it.pid, plain(&it.role), plain(&it.application))
                        };
                        ended.iter().map(line).collect::<Vec<_>>().join("\n")
                    })?;
                }
            }
            Ok(Exit::Success)
        })
        .await
    }
}
