//! Which tasks there are.

use std::time::Duration;

use lockapi::queue::Job;
use lockapi::schedule::{Misfire, Overlap};
use lockapi::{Queue, Scheduler};

/// The first time is so long after the start, so that all tasks are set by then.
const SETTING: Duration = Duration::from_secs(2);

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

/// Hands the tasks to the scheduler.
pub(crate) async fn set(scheduler: &dyn Scheduler, tasks: &[Task]) -> lockapi::Result<()> {
    for task in tasks {
        let job = Job::new(&task.name, &())?.max_attempts(1000);
        let recurring = lockapi::schedule::Task::every(&task.name, task.every, job)
            .first_in(SETTING + task.offset)
            .misfire(Misfire::CatchUp(1000))
            .overlap(Overlap::Queue);
        scheduler.set(recurring).await?;
        if !task.enabled {
            scheduler.disable(&task.name).await?;
        }
    }
    Ok(())
}

/// Takes all tasks, and what is left to do, away.
pub(crate) async fn clear(scheduler: &dyn Scheduler, queue: &dyn Queue) -> lockapi::Result<()> {
    for task in scheduler.list().await? {
        scheduler.remove(&task.name).await?;
    }
    queue.purge().await.map(drop)
}
