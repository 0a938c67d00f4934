//! Where figures go, and what a process uses.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

/// Which direction is good.
#[derive(Clone, Copy)]
pub(crate) enum Better {
    Lower,
    Higher,
}

/// The figures of a run.
pub(crate) struct Report {
    file: File,
    rows: Vec<[String; 6]>,
}

impl Report {
    /// Replaces the figures that the bench `name` wrote before, and keeps those of others.
    pub(crate) fn open(name: &str) -> Self {
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
            file,
            rows: Vec::new(),
        }
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
            "figure": figure, "backend": "sqlx", "unit": unit, "ours": ours, "baseline": baseline,
            "baseline_is": baseline_is, "ratio": ratio, "bench": "locks",
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

/// Resident memory of this process.
pub(crate) fn resident_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("/proc/self/statm");
    let pages: u64 = statm
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .expect("resident pages");
    pages * 4096
}

/// Processor time that this process has used.
pub(crate) fn cpu_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").expect("/proc/self/stat");
    let after = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = after
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|ticks| ticks.parse::<u64>().ok())
        .sum();
    Duration::from_millis(ticks * 10)
}
