//! Ids of many processes on three libraries, which are killed and stopped while the times of claims are moved, as by a server's
//! clock that is set back and ahead; afterwards all ids that were recorded are compared.
//!
//! ```text
//! cargo run --release -p lockapi-conformance --example ids -- --ids 100000000
//! ```

mod audit;
#[path = "../common/mod.rs"]
mod common;
mod worker;

use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use common::{Crew, Problem, Task};
use lockapi::blocking::Backend;
use lockapi_conformance::cluster::Cluster;
use postgres::{Client, NoTls};

const SET_BACK: &str = include_str!("set_back.sql");
const SET_AHEAD: &str = include_str!("set_ahead.sql");

/// Something happens about this often.
const PAUSE: Duration = Duration::from_millis(150);

const HELP: &str = "\
Makes ids in many processes that are killed and stopped while the times of their claims are moved, as if
the server's clock were set, and looks for twins.

  --ids N         how many ids are recorded, 1,000,000 unless set
  --processes N   how many processes make them, 8 unless set";

fn main() -> ExitCode {
    common::exit(run())
}

fn run() -> Result<bool, Problem> {
    use lexopt::prelude::{Long, ValueExt};

    let (mut ids, mut processes) = (1_000_000u64, 8u64);
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("ids") => ids = arguments.value()?.parse()?,
            Long("processes") => processes = arguments.value()?.parse()?,
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
    let cluster = Cluster::private(&[])?;
    let backend = Backend::connect(lockapi_postgres::connect_url(cluster.url()))?;
    backend.migrate()?;
    let mut client = Client::connect(cluster.url(), NoTls)?;
    let mut set = 0;
    let start = Instant::now();
    let mut crew = Crew::start(cluster.url(), recorded, processes, ids)?;
    crew.disturb(PAUSE, || {
        if fastrand::bool() {
            let steps = [1i64, 5_000, 3_600_000];
            client.execute(SET_BACK, &[&steps[fastrand::usize(0..steps.len())]])?;
        } else {
            client.execute(SET_AHEAD, &[])?;
        }
        set += 1;
        Ok(true)
    })?;
    let took = start.elapsed();
    let found = audit::compare(&crew.files)?;
    let (killed, stopped) = (crew.killed.len(), crew.stopped);
    // Each process does it when it starts.
    set += crew.files.len();
    println!(
        "ids          {:>12}   recorded in {:.1} s",
        found.ids,
        took.as_secs_f64()
    );
    println!(
        "processes    {:>12}   on sqlx, Diesel and postgres by turns",
        crew.files.len()
    );
    println!(
        "numbers      {:>12}   worker numbers were used",
        found.workers
    );
    println!("killed       {killed:>12}   and replaced");
    println!("stopped      {stopped:>12}   for up to 2 s");
    println!("moved        {set:>12}   times, as by a clock that is set back or ahead");
    println!(
        "disorder     {:>12}   ids not above the one before, within a process",
        found.disorder
    );
    println!("twice        {:>12}   ids made more than once", found.twice);
    let passed = found.twice == 0 && found.disorder == 0 && found.ids >= ids;
    println!("{}", if passed { "PASSED" } else { "FAILED" });
    Ok(passed)
}

/// How many ids are in a file; a process that was killed at once has none.
fn recorded(file: &Path) -> Result<u64, Problem> {
    match std::fs::metadata(file) {
        Ok(file) => Ok(file.len() / 8),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error.into()),
    }
}
