//! `lockapi queue history`.

use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};
use lockapi::Backend;
use lockapi::queue::{HistoryPoint, HistoryStep};
use serde::{Serialize, Serializer};

use super::look;
use crate::arguments::Global;
use crate::failure::Result;
use crate::output::{Entry, maybe_seconds, spoken_or_unknown, time};

/// Which steps.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum By {
    /// The minutes of the last hour
    Minute,
    /// The hours of the last week
    Hour,
}

/// A history.
#[derive(Debug, Args)]
pub(crate) struct History {
    /// The queue
    queue: String,
    /// The minutes of the last hour, or the hours of the last week
    #[arg(long, value_enum, default_value = "minute")]
    by: By,
    /// Of jobs with this name only
    #[arg(long, value_name = "JOB", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    name: Option<String>,
}

/// A minute or an hour.
#[derive(Debug, Serialize)]
struct Point {
    #[serde(serialize_with = "at")]
    at: SystemTime,
    completed: u64,
    failed: u64,
    dead: u64,
    #[serde(serialize_with = "maybe_seconds")]
    wait_mean: Option<Duration>,
    #[serde(serialize_with = "maybe_seconds")]
    wait_p50: Option<Duration>,
    #[serde(serialize_with = "maybe_seconds")]
    wait_p95: Option<Duration>,
    #[serde(serialize_with = "maybe_seconds")]
    run_mean: Option<Duration>,
    #[serde(serialize_with = "maybe_seconds")]
    run_p50: Option<Duration>,
    #[serde(serialize_with = "maybe_seconds")]
    run_p95: Option<Duration>,
}

fn at<S: Serializer>(at: &SystemTime, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_str(&time(*at))
}

impl From<HistoryPoint> for Point {
    fn from(point: HistoryPoint) -> Self {
        Self {
            at: point.at,
            completed: point.completed,
            failed: point.failed,
            dead: point.dead,
            wait_mean: point.mean_wait(),
            wait_p50: point.wait_quantile(0.5),
            wait_p95: point.wait_quantile(0.95),
            run_mean: point.mean_run(),
            run_p50: point.run_quantile(0.5),
            run_p95: point.run_quantile(0.95),
        }
    }
}

impl Entry for Point {
    const COLUMNS: &'static [&'static str] = &[
        "at",
        "completed",
        "failed",
        "dead",
        "wait p50",
        "wait p95",
        "run p50",
        "run p95",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            time(self.at),
            self.completed.to_string(),
            self.failed.to_string(),
            self.dead.to_string(),
            spoken_or_unknown(self.wait_p50),
            spoken_or_unknown(self.wait_p95),
            spoken_or_unknown(self.run_p50),
            spoken_or_unknown(self.run_p95),
        ]
    }
}

impl History {
    pub(crate) async fn run(self, global: &Global, backend: &dyn Backend) -> Result<()> {
        let step = match self.by {
            By::Minute => HistoryStep::Minute,
            By::Hour => HistoryStep::Hour,
        };
        let inspector = backend.inspector();
        let points = inspector.history(&self.queue, self.name.as_deref(), step);
        let points = points.await?;
        if points.is_empty() {
            look::look_first(backend, &self.queue).await;
        }
        let points: Vec<Point> = points.into_iter().map(Point::from).collect();
        global.output().entries(&points)
    }
}
