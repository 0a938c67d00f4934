//! `lockapi limit`: rate limits.

use std::time::Duration;

use clap::Subcommand;
use lockapi::admin::LimitLevel;
use lockapi::limit::{Decision, PermitRequest, Quota};
use lockapi::{Backend, Error, Key};
use serde::Serialize;

use crate::arguments::Global;
use crate::common::{Why, recorded_where, with_backend};
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::output::{Entry, maybe_seconds, seconds, spoken, spoken_or_unknown};
use crate::present;
use crate::values::{duration, key, quota};

/// See what was taken and what a limit would decide, take permits, end a wait, block a key
#[derive(Debug, Subcommand)]
pub(crate) enum Limit {
    /// List what was taken of limits, by key
    List {
        /// Begin after this key
        #[arg(long, value_name = "KEY", default_value = "")]
        after: String,
        /// At most so many, up to 1000
        #[arg(long, value_name = "NUMBER", default_value_t = 100)]
        limit: usize,
    },
    /// Show what would be decided now under a quota; takes nothing
    Show {
        /// The limit
        #[arg(value_parser = key)]
        key: Key,
        /// The quota that programs use for it, such as 100/1h, or 100/1h,5 for at most 5 at once
        #[arg(long, value_parser = quota)]
        quota: Quota,
        /// How many permits
        #[arg(long, default_value_t = 1)]
        cost: u64,
    },
    /// Take permits if they are there; exits with 120 if they are not
    Take {
        /// The limit
        #[arg(value_parser = key)]
        key: Key,
        /// The quota that programs use for it
        #[arg(long, value_parser = quota)]
        quota: Quota,
        /// How many permits
        #[arg(long, default_value_t = 1)]
        cost: u64,
    },
    /// Forget what was taken of a key, its reservations and its block
    Reset {
        /// The limit
        #[arg(value_parser = key)]
        key: Key,
        #[command(flatten)]
        why: Why,
    },
    /// Refuse everything of a key for a time; 0s ends that
    Block {
        /// The limit
        #[arg(value_parser = key)]
        key: Key,
        /// For how long, such as 10m
        #[arg(value_parser = duration)]
        time: Duration,
        #[command(flatten)]
        why: Why,
    },
}

#[derive(Debug, Serialize)]
struct Decided {
    key: String,
    allowed: bool,
    limit: u64,
    remaining: u64,
    #[serde(rename = "retry_seconds", serialize_with = "seconds")]
    retry_after: Duration,
    #[serde(rename = "reset_seconds", serialize_with = "seconds")]
    reset_after: Duration,
}

impl From<&Decision> for Decided {
    fn from(decision: &Decision) -> Self {
        Self {
            key: decision.key().to_string(),
            allowed: decision.is_allowed(),
            limit: decision.limit(),
            remaining: decision.remaining(),
            retry_after: decision.retry_after(),
            reset_after: decision.reset_after(),
        }
    }
}

impl Decided {
    fn words(&self) -> String {
        let left = format!("{} of {} left", self.remaining, self.limit);
        if self.allowed {
            format!(
                "allowed; {left}, all of them again in {}",
                spoken(self.reset_after)
            )
        } else {
            format!("refused; {left}, try again in {}", spoken(self.retry_after))
        }
    }
}

/// What a limit has admitted lately; its quota is in the programs.
#[derive(Debug, Serialize)]
struct Level {
    key: String,
    #[serde(rename = "decided_seconds", serialize_with = "seconds")]
    decided: Duration,
    #[serde(rename = "backlog_seconds", serialize_with = "seconds")]
    backlog: Duration,
    #[serde(rename = "window_seconds", serialize_with = "maybe_seconds")]
    window: Option<Duration>,
    used: i64,
    used_before: i64,
    #[serde(rename = "blocked_seconds", serialize_with = "maybe_seconds")]
    blocked: Option<Duration>,
    reservations: i64,
}

impl From<LimitLevel> for Level {
    fn from(level: LimitLevel) -> Self {
        Self {
            key: level.key,
            decided: level.decided,
            backlog: level.backlog,
            window: level.window,
            used: level.used,
            used_before: level.before,
            blocked: level.blocked,
            reservations: level.reservations,
        }
    }
}

impl Entry for Level {
    const COLUMNS: &'static [&'static str] = &[
        "key",
        "decided ago",
        "flows back in",
        "window",
        "used",
        "before",
        "blocked for",
        "reservations",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.key.clone(),
            spoken(self.decided),
            spoken(self.backlog),
            spoken_or_unknown(self.window),
            self.used.to_string(),
            self.used_before.to_string(),
            spoken_or_unknown(self.blocked),
            self.reservations.to_string(),
        ]
    }
}

/// The quota does not matter where nothing is decided.
const ANY: Quota = Quota::per_second(1);

async fn is_kept(backend: &dyn Backend, key: &Key) -> Result<bool, Error> {
    Ok(present::limit(backend, key).await?.is_some())
}

fn absent(key: &Key) -> Failure {
    Failure::new(Exit::Absent, format!("nothing is kept of the limit {key}"))
        .advise("`lockapi limit list` shows what was taken, by key. What flows back is forgotten after a minute.")
}

impl Limit {
    pub(crate) async fn run(self, global: &Global) -> Result<Exit> {
        with_backend(global, async |backend| match self {
            Self::List { after, limit } => {
                let levels = backend.inspector().limits(&after, limit).await?;
                let levels: Vec<Level> = levels.into_iter().map(Level::from).collect();
                global.output().entries(&levels)?;
                Ok(Exit::Success)
            }
            Self::Show { key, quota, cost } => {
                let limiter = backend.rate_limiter(quota)?;
                let decision = limiter.peek(&PermitRequest::new(key).cost(cost)).await?;
                global
                    .output()
                    .value(&Decided::from(&decision), Decided::words)?;
                Ok(Exit::Success)
            }
            Self::Take { key, quota, cost } => {
                let limiter = backend.rate_limiter(quota)?;
                let decision = limiter.check_cost(key, cost).await?;
                global
                    .output()
                    .value(&Decided::from(&decision), Decided::words)?;
                Ok(if decision.is_allowed() {
                    Exit::Success
                } else {
                    Exit::Busy
                })
            }
            Self::Reset { key, why } => {
                let (action, target) = ("reset limit", key.to_string());
                let kept = async |backend: &dyn Backend| is_kept(backend, &key).await;
                let reset =
                    async |backend: &dyn Backend| backend.rate_limiter(ANY)?.reset(&key).await;
                let done = recorded_where(&**backend, kept, (action, &target), &why, reset);
                done.await?.ok_or_else(|| absent(&key))?;
                global.output().done(action, &target)?;
                Ok(Exit::Success)
            }
            Self::Block { key, time, why } => {
                let (action, target) = ("block limit", format!("{key} for {time:?}"));
                let block = async |backend: &dyn Backend| {
                    backend.rate_limiter(ANY)?.block(&key, time).await
                };
                // One that nobody has used can be blocked, but there is no block of it to end.
                let kept = async |backend: &dyn Backend| {
                    Ok(!time.is_zero() || is_kept(backend, &key).await?)
                };
                let done = recorded_where(&**backend, kept, (action, &target), &why, block);
                done.await?.ok_or_else(|| absent(&key))?;
                global.output().done(action, &target)?;
                Ok(Exit::Success)
            }
        })
        .await
    }
}
