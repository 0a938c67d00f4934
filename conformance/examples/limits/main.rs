//! Rate limits that many processes on three libraries ask as fast as they can, while they are killed
//! and stopped; afterwards all decisions that were recorded are decided by the definitions of the
//! quotas.
//!
//! ```text
//! cargo run --release -p lockapi-conformance --example limits -- --decisions 1000000
//! ```

#[path = "../common/mod.rs"]
mod common;

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use common::{Crew, Problem, Task};
use lockapi::blocking::Backend;
use lockapi::limit::{Algorithm, Quota};
use lockapi_conformance::cluster::Cluster;
use lockapi_conformance::flood::{DOORS, Record, check, flood};

/// So many ask at the same time at a key, in each process.
const CALLERS: usize = 256;
/// Something happens about this often.
const PAUSE: Duration = Duration::from_secs(1);

const HELP: &str = "\
Asks rate limits from many processes that are killed and stopped, and looks for what was too much.

  --decisions N       how many decisions are made, 1,000,000 unless set
  --processes N       how many processes ask, 8 unless set
  --without-database  each process limits for itself, so that too much is admitted";

fn main() -> ExitCode {
    common::exit(run())
}

fn run() -> Result<bool, Problem> {
    use lexopt::prelude::{Long, ValueExt};

    let (mut decisions, mut processes, mut alone) = (1_000_000u64, 8u64, false);
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("decisions") => decisions = arguments.value()?.parse()?,
            Long("processes") => processes = arguments.value()?.parse()?,
            Long("without-database") => alone = true,
            Long("worker") => {
                work(&Task::read(&arguments.values()?.collect::<Vec<_>>())?)?;
                return Ok(true);
            }
            Long("help") => {
                println!("{HELP}");
                return Ok(true);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let cluster = Cluster::private(&[])?;
    Backend::connect(lockapi_postgres::connect_url(cluster.url()))?.migrate()?;
    let url = if alone { "" } else { cluster.url() };
    let start = Instant::now();
    let mut crew = Crew::start(url, recorded, processes, decisions)?;
    crew.disturb(PAUSE, || Ok(false))?;
    let took = start.elapsed().as_secs_f64();
    let history = read(&crew.files)?;
    println!("decisions    {:>9}   in {took:.1} s", history.len());
    println!(
        "processes    {:>9}   on sqlx, Diesel and postgres by turns",
        crew.files.len()
    );
    println!("killed       {:>9}   and replaced", crew.killed.len());
    println!("stopped      {:>9}   for up to 2 s\n", crew.stopped);
    // In each of two tasks of a process one window may start whose admission is not recorded.
    let within = print(&history, 2 * crew.killed.len());
    let passed = within && history.len() as u64 >= decisions;
    println!("{}", if passed { "PASSED" } else { "FAILED" });
    Ok(passed)
}

/// A process: asks, and records each decision before the next is made for the same caller.
fn work(task: &Task) -> Result<(), Problem> {
    let file = File::create(&task.file)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let backend = task.connect().await?;
        let decisions = usize::try_from(task.work)?;
        let record = |record: Record| {
            let line = format!("{record}\n");
            (&file).write_all(line.as_bytes()).expect("it is recorded");
        };
        Ok(flood(&*backend, decisions, CALLERS, record).await?)
    })
}

/// How many decisions are in a file.
fn recorded(file: &Path) -> Result<u64, Problem> {
    Ok(read(&[file.to_owned()])?.len() as u64)
}

fn read(files: &[PathBuf]) -> Result<Vec<Record>, Problem> {
    let mut records = Vec::new();
    for path in files {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            // It was killed before it made any.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error.into()),
        };
        // The last line of one that was killed may be a part.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for line in whole.lines() {
            records.push(line.parse()?);
        }
    }
    Ok(records)
}

/// A row for each key; answers whether all are within their quotas.
fn print(history: &[Record], lost: usize) -> bool {
    let mut within = true;
    let head = ("key", "quota", "decisions", "admitted", "permits");
    println!(
        "{:<24} {:<28} {:>9} {:>9} {:>9}",
        head.0, head.1, head.2, head.3, head.4
    );
    for (nth, door) in DOORS.iter().enumerate() {
        let of = history.iter().filter(|one| one.door == nth).copied();
        let found = check(&door.quota, &of.collect::<Vec<_>>(), lost);
        within &= found.excess.is_none();
        println!(
            "{:<24} {:<28} {:>9} {:>9} {:>9}   {}",
            door.key,
            text(&door.quota),
            found.decisions,
            found.admitted,
            found.permits,
            found.excess.as_deref().unwrap_or("within")
        );
    }
    within
}

fn text(quota: &Quota) -> String {
    let (permits, period, burst) = (quota.permits(), quota.period(), quota.limit());
    match quota.algorithm() {
        Algorithm::Gcra => format!("{permits} in {period:?}, burst {burst}"),
        Algorithm::FixedWindow => format!("{permits} in fixed {period:?}"),
        Algorithm::SlidingWindow => format!("{permits} in sliding {period:?}"),
        other => format!("{permits} in {period:?}, {other:?}"),
    }
}
