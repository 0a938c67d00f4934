//! Which tasks there are.

use std::time::Duration;

/// A recurring task.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) name: String,
    /// How often it is due.
    pub(crate) every: Duration,
    /// When it is due first, after the start.
    pub(crate) offset: Duration,
    /// How long its work takes.
    pub(crate) work: Duration,
    pub(crate) enabled: bool,
}

const JOBS: [&str; 10] = [
    "backup",
    "cleanup",
    "digest",
    "exports",
    "imports",
    "invoices",
    "metrics",
    "reindex",
    "reminders",
    "thumbnails",
];
const PERIODS: [u64; 5] = [2000, 3000, 4000, 5000, 8000];

/// The same tasks every time: different periods, spread starts, work from 20 ms to almost 1 s, and
/// one in 25 is disabled.
pub(crate) fn tasks(count: usize) -> Vec<Task> {
    (0_u64..)
        .take(count)
        .zip(JOBS.iter().cycle())
        .map(|(number, job)| {
            let every = PERIODS[usize::try_from(number / 10).unwrap_or(0) % PERIODS.len()];
            let long = if number % 7 == 0 { 600 } else { 0 };
            Task {
                name: format!("{job}-{number:02}"),
                every: Duration::from_millis(every),
                offset: Duration::from_millis(every * (number * 61 % 100) / 100),
                work: Duration::from_millis(20 + number * 37 % 280 + long),
                enabled: number % 25 != 24,
            }
        })
        .collect()
}
