//! `lockapi limit`: rate limits.

use std::time::Duration;

use clap::Subcommand;
use lockapi::Key;
use lockapi::limit::{Decision, Quota, Want};
use serde::Serialize;

use crate::arguments::Global;
use crate::common::{Why, with_backend};
use crate::exit::Exit;
use crate::failure::Result;
use crate::output::{seconds, spoken};
use crate::values::{duration, key, quota};

/// See what a limit would decide, take permits, end a wait, block a key
#[derive(Debug, Subcommand)]
pub(crate) enum Limit {
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

/// The quota does not matter where nothing is decided.
const ANY: Quota = Quota::per_second(1);

impl Limit {
    pub(crate) async fn run(self, global: &Global) -> Result<Exit> {
        with_backend(global, async |backend| match self {
            Self::Show { key, quota, cost } => {
                let limiter = backend.rate_limiter(quota)?;
                let decision = limiter.peek(&Want::new(key).cost(cost)).await?;
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
                let limiter = backend.rate_limiter(ANY)?;
                backend
                    .operator()
                    .record("reset limit", &key.to_string(), &why.reason)
                    .await?;
                limiter.reset(&key).await?;
                Ok(Exit::Success)
            }
            Self::Block { key, time, why } => {
                let limiter = backend.rate_limiter(ANY)?;
                let target = format!("{key} for {time:?}");
                backend
                    .operator()
                    .record("block limit", &target, &why.reason)
                    .await?;
                limiter.block(&key, time).await?;
                Ok(Exit::Success)
            }
        })
        .await
    }
}
