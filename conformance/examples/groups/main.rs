//! Jobs of many groups in processes on three libraries, which are killed and stopped while they work;
//! afterwards their logs tell whether the jobs of a group kept to their order and to their limit.
//!
//! ```text
//! cargo run --release -p lockapi-conformance --example groups -- --jobs 100000 --groups 1000
//! ```
//!
//! With `--limit 5` five jobs of a group may run at once, in any order. With `--without` the jobs have no
//! group: the audit must fail.

mod audit;
#[path = "../common/mod.rs"]
mod common;
mod worker;

use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use common::{Crew, Problem, Task};
use lockapi::blocking::{Backend, Queue};
use lockapi::queue::{Groups, Job, QueueOptions};
use lockapi_conformance::cluster::Cluster;

/// Something happens about this often.
const PAUSE: Duration = Duration::from_millis(150);
/// How many jobs are pushed at once.
const PART: u64 = 1000;
/// The queue.
const QUEUE: &str = "steps";

const HELP: &str = "\
Works on jobs of groups in many processes that are killed and stopped, and audits what they recorded.

  --jobs N        how many jobs there are, 20,000 unless set
  --groups N      how many groups, 200 unless set
  --processes N   how many processes work on them, 10 unless set
  --limit N       how many jobs of a group may run at once; without it they run one after the other, in order
  --without       leaves the groups out: the audit fails, as it must";

fn main() -> ExitCode {
    common::exit(run())
}

fn run() -> Result<bool, Problem> {
    use lexopt::prelude::{Long, ValueExt};

    let (mut jobs, mut groups, mut processes) = (20_000u64, 200u64, 10u64);
    let (mut limit, mut without) = (None::<u32>, false);
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("jobs") => jobs = arguments.value()?.parse()?,
            Long("groups") => groups = arguments.value()?.parse()?,
            Long("processes") => processes = arguments.value()?.parse()?,
            Long("limit") => limit = Some(arguments.value()?.parse()?),
            Long("without") => without = true,
            Long("worker") => {
                let task = Task::read(&arguments.values()?.collect::<Vec<_>>())?;
                worker::run(&task)?;
                return Ok(true);
            }
            Long("help") => {
                println!("{HELP}");
                return Ok(true);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    if groups == 0 {
        return Err("0 groups; allowed are 1 or more".into());
    }
    let cluster = Cluster::private(&[])?;
    let backend = Backend::connect(lockapi_postgres::connect_url(cluster.url()))?;
    backend.migrate()?;
    let queue = backend.queue_with(QUEUE, QueueOptions::default())?;
    queue.set_groups(match limit {
        Some(limit) => Groups::default().limit(limit),
        None => Groups::default().ordered(),
    })?;
    push(&queue, jobs, groups, without)?;
    let start = Instant::now();
    let mut crew = Crew::start(cluster.url(), recorded, processes, jobs.max(processes))?;
    crew.disturb(PAUSE, || Ok(false))?;
    let took = start.elapsed();
    let left = queue.statistics()?;
    let found = audit::judge((&crew.files, &crew.killed), jobs, groups, limit)?;
    let undone = left.ready.count + left.running.count + left.delayed.count + left.dead.count;
    println!(
        "jobs         {jobs:>12}   of {groups} groups, done in {:.1} s",
        took.as_secs_f64()
    );
    println!(
        "processes    {:>12}   on sqlx, Diesel and postgres by turns",
        crew.files.len()
    );
    println!("killed       {:>12}   and replaced", crew.killed.len());
    println!("stopped      {:>12}   for up to 2 s", crew.stopped);
    println!(
        "deliveries   {:>12}   of which {} were tried again",
        found.begun,
        found.begun.saturating_sub(jobs)
    );
    println!(
        "overruns     {:>12}   more at once than may be",
        found.overruns
    );
    match limit {
        Some(_) => println!("inversions              -   there is no order"),
        None => println!(
            "inversions   {:>12}   begun before an earlier one was done",
            found.inversions
        ),
    }
    println!(
        "lost         {:>12}   never done, or done and never acknowledged",
        found.lost
    );
    println!("twice        {:>12}   acknowledged twice", found.twice);
    println!("left         {undone:>12}   still in the queue");
    let broken = found.overruns + found.inversions + found.lost + found.twice;
    let passed = broken + undone == 0;
    println!("{}", if passed { "PASSED" } else { "FAILED" });
    Ok(passed)
}

/// The jobs of a group are numbered in the order in which they are pushed.
fn push(queue: &Queue, jobs: u64, groups: u64, without: bool) -> Result<(), Problem> {
    let mut next = 0;
    while next < jobs {
        let part = next..jobs.min(next + PART);
        next = part.end;
        let job = |nth: u64| {
            let (group, number) = (nth % groups, nth / groups);
            let job = Job::new("step", &(group, number))?;
            Ok(if without {
                job
            } else {
                job.group(format!("group {group}"))
            })
        };
        let part: Result<Vec<_>, lockapi::Error> = part.map(job).collect();
        queue.push_all(part?)?;
    }
    Ok(())
}

/// How many jobs a process has done, by its log; one that was killed at once has none.
fn recorded(file: &Path) -> Result<u64, Problem> {
    match std::fs::read_to_string(file) {
        Ok(log) => {
            let done = log.lines().filter(|line| line.starts_with('a')).count();
            Ok(u64::try_from(done)?)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error.into()),
    }
}
