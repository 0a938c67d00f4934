//! Rate limits and worker numbers, as lists show them.

use std::time::Duration;

/// What a rate limit has admitted lately. What it would admit depends on the quota, which only the programs
/// know.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitLevel {
    /// Its key as tables store it.
    pub key: String,
    /// How long ago a request was last decided.
    pub decided: Duration,
    /// By the cell rate algorithm: the time until all permits that were taken are replenished.
    pub backlog: Duration,
    /// The length of its window; `None` without one that counts.
    pub window: Option<Duration>,
    /// Permits taken in the window.
    pub used: i64,
    /// Permits taken in the window before.
    pub before: i64,
    /// For how long everything is refused still; `None` when it is not blocked.
    pub blocked: Option<Duration>,
    /// How many reservations are open.
    pub reservations: i64,
}

/// A worker number that makes ids.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerNumber {
    /// Name of the ids.
    pub name: String,
    /// The number.
    pub worker: i64,
    /// The name that the owner gave itself.
    pub owner: String,
    /// For how long.
    pub held_for: Duration,
    /// How long it is still held unless it is renewed.
    pub remaining: Duration,
}
