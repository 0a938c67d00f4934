//! Where figures go, how they are measured, and what is measured beside the library.

#![allow(dead_code, reason = "each bench uses a part of it")]

pub(crate) mod plain;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockapi::Backend;
use lockapi_conformance::cluster::Cluster;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

/// A server to measure.
pub(crate) struct Server {
    cluster: Option<Cluster>,
    named: String,
}

impl Server {
    /// Nobody else's work is to be measured: a server that only this bench uses, unless the caller names
    /// one in `DATABASE_URL`.
    pub(crate) fn start() -> Self {
        match std::env::var("DATABASE_URL") {
            Ok(named) => Self {
                cluster: None,
                named,
            },
            Err(_) => Self::private(),
        }
    }

    /// A server that only this bench uses.
    pub(crate) fn private() -> Self {
        let cluster = Cluster::private(&[]).unwrap_or_else(|error| panic!("{error}"));
        Self {
            cluster: Some(cluster),
            named: String::new(),
        }
    }

    pub(crate) fn url(&self) -> &str {
        let cluster = self.cluster.as_ref();
        cluster.map_or(&*self.named, Cluster::url)
    }
}

/// A backend on sqlx, with its tables.
pub(crate) async fn connect(url: &str) -> Arc<dyn Backend> {
    let backend = lockapi_sqlx::connect_url(url).await.expect("a backend");
    backend.migrate().await.expect("tables");
    backend
}

/// Which direction is good.
#[derive(Clone, Copy)]
pub(crate) enum Better {
    Lower,
    Higher,
}

/// The figures of a run.
pub(crate) struct Report {
    bench: &'static str,
    backend: &'static str,
    file: File,
    rows: Vec<[String; 6]>,
}

impl Report {
    /// Replaces the figures that the bench `name` wrote before, and keeps those of others.
    pub(crate) fn open(name: &'static str) -> Self {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
        fs::create_dir_all(&folder).expect("target/bench");
        let path = folder.join("figures.jsonl");
        let mark = format!("\"bench\":\"{name}\"");
        let kept: String = fs::read_to_string(&path)
            .unwrap_or_default()
            .lines()
            .filter(|line| !line.contains(&mark))
            .flat_map(|line| [line, "\n"])
            .collect();
        fs::write(&path, kept).expect("figures.jsonl");
        let file = OpenOptions::new()
            .append(true)
            .open(&path)
            .expect("figures.jsonl");
        Self {
            bench: name,
            backend: "",
            file,
            rows: Vec::new(),
        }
    }

    /// Says whose figures the next ones are.
    pub(crate) fn of(&mut self, backend: &'static str) {
        self.backend = backend;
    }

    pub(crate) fn add(
        &mut self,
        figure: &str,
        unit: &str,
        ours: f64,
        baseline: f64,
        baseline_is: &str,
        better: Better,
    ) {
        let ratio = ours / baseline;
        let line = json!({
            "figure": figure, "backend": self.backend, "unit": unit, "ours": ours, "baseline": baseline,
            "baseline_is": baseline_is, "ratio": ratio, "bench": self.bench,
        });
        writeln!(self.file, "{line}").expect("figures.jsonl");
        let better = match better {
            Better::Lower => "lower",
            Better::Higher => "higher",
        };
        self.rows.push([
            figure.to_owned(),
            format!("{} {unit}", number(ours)),
            number(baseline),
            format!("{ratio:.2}"),
            better.to_owned(),
            baseline_is.to_owned(),
        ]);
        eprintln!(
            "{figure}: {} {unit}, {ratio:.2} of {baseline_is}",
            number(ours)
        );
    }

    pub(crate) fn print(&self) {
        let head = [
            "figure",
            "ours",
            "baseline",
            "ratio",
            "better",
            "baseline is",
        ];
        let mut widths = head.map(str::len);
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.len());
            }
        }
        let line = |cells: [&str; 6]| {
            let cells: Vec<_> = cells
                .iter()
                .zip(widths)
                .map(|(cell, width)| format!("{cell:width$}"))
                .collect();
            println!("| {} |", cells.join(" | "));
        };
        line(head);
        println!("|{}|", widths.map(|width| "-".repeat(width + 2)).join("|"));
        for row in &self.rows {
            line([&row[0], &row[1], &row[2], &row[3], &row[4], &row[5]]);
        }
    }
}

fn number(value: f64) -> String {
    if value >= 100.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.3}")
    }
}

/// The value in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// How long a rate is measured.
pub(crate) const SECONDS: Duration = Duration::from_secs(3);

/// How often `work` counts in a second, with many tasks.
pub(crate) async fn rate<W, F>(tasks: usize, work: W) -> f64
where
    W: Fn(usize, Arc<AtomicU64>, Instant) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let count = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let until = start + SECONDS;
    let running: Vec<_> = (0..tasks)
        .map(|task| tokio::spawn(work(task, Arc::clone(&count), until)))
        .collect();
    for task in running {
        task.await.expect("a task");
    }
    let count = u32::try_from(count.load(Ordering::Relaxed)).expect("fewer than four billion");
    f64::from(count) / start.elapsed().as_secs_f64()
}

pub(crate) fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}
