//! Ids of many processes on three libraries, which are killed and stopped while the server's clock is
//! set back and ahead; afterwards all ids that were recorded are compared.
//!
//! ```text
//! cargo run --release -p conformance --example ids -- --ids 100000000
//! ```

mod audit;
mod worker;

use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use conformance::cluster::Cluster;
use lockapi::blocking::Backend;
use postgres::{Client, NoTls};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

type Problem = Box<dyn std::error::Error>;

const SET_BACK: &str = include_str!("set_back.sql");
const SET_AHEAD: &str = include_str!("set_ahead.sql");
/// Something happens about this often.
const PAUSE: Duration = Duration::from_millis(150);

const HELP: &str = "\
Makes ids in many processes that are killed and stopped while clocks are set, and looks for twins.

  --ids N         how many ids are recorded, 1,000,000 unless set
  --processes N   how many processes make them, 8 unless set";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
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
                worker::run(&arguments.values()?.collect::<Vec<_>>())?;
                return Ok(true);
            }
            Long("help") => {
                println!("{HELP}");
                return Ok(true);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    if processes == 0 || ids < processes {
        return Err("at least one process, and an id for each".into());
    }
    let cluster = Cluster::private(&[])?;
    let backend = Backend::connect(backend_sync::connect_url(cluster.url()))?;
    backend.migrate()?;
    let mut run = Run {
        url: cluster.url().to_owned(),
        folder: tempfile::tempdir()?,
        client: Client::connect(cluster.url(), NoTls)?,
        files: Vec::new(),
        places: Vec::new(),
        happened: Happened::default(),
    };
    let start = Instant::now();
    for number in 0..processes {
        let part = ids / processes + u64::from(number < ids % processes);
        run.start(usize::try_from(number)?, part)?;
    }
    run.disturb()?;
    let took = start.elapsed();
    let found = audit::compare(&run.files)?;
    let Happened {
        killed,
        stopped,
        set,
    } = run.happened;
    println!(
        "ids          {:>12}   recorded in {:.1} s",
        found.ids,
        took.as_secs_f64()
    );
    println!(
        "processes    {:>12}   on sqlx, Diesel and postgres by turns",
        run.files.len()
    );
    println!(
        "numbers      {:>12}   worker numbers were used",
        found.workers
    );
    println!("killed       {killed:>12}   and replaced");
    println!("stopped      {stopped:>12}   for up to 2 s");
    println!("clock        {set:>12}   times set back or ahead");
    println!(
        "disorder     {:>12}   ids not above the one before, within a process",
        found.disorder
    );
    println!("twice        {:>12}   ids made more than once", found.twice);
    let passed = found.twice == 0 && found.disorder == 0 && found.ids >= ids;
    println!("{}", if passed { "PASSED" } else { "FAILED" });
    Ok(passed)
}

/// What was done to the processes.
#[derive(Default)]
struct Happened {
    killed: u32,
    stopped: u32,
    set: u32,
}

struct Run {
    url: String,
    folder: TempDir,
    client: Client,
    /// What each process recorded, also of those that were killed.
    files: Vec<PathBuf>,
    places: Vec<Place>,
    happened: Happened,
}

/// A process, and what is to be done by it and its replacements.
struct Place {
    process: Child,
    file: PathBuf,
    left: u64,
    stopped_until: Option<Instant>,
    done: bool,
}

impl Run {
    fn launch(&mut self, left: u64) -> Result<Place, Problem> {
        const LIBRARIES: [&str; 3] = ["sqlx", "diesel", "sync"];
        let file = self.folder.path().join(format!("{}", self.files.len()));
        let library = LIBRARIES[self.files.len() % LIBRARIES.len()];
        let process = Command::new(std::env::current_exe()?)
            .args(["--worker", library, &self.url])
            .arg(&file)
            .arg(left.to_string())
            .stdin(Stdio::piped())
            .spawn()?;
        self.files.push(file.clone());
        Ok(Place {
            process,
            file,
            left,
            stopped_until: None,
            done: false,
        })
    }

    fn start(&mut self, number: usize, left: u64) -> Result<(), Problem> {
        let place = self.launch(left)?;
        self.places.insert(number, place);
        Ok(())
    }

    /// Until all are done.
    fn disturb(&mut self) -> Result<(), Problem> {
        let mut next = Instant::now() + PAUSE;
        while self.places.iter().any(|place| !place.done) {
            std::thread::sleep(Duration::from_millis(20));
            for place in &mut self.places {
                if place
                    .stopped_until
                    .is_some_and(|until| until < Instant::now())
                {
                    place.stopped_until = None;
                    signal(place, Signal::CONT)?;
                }
                if !place.done
                    && let Some(status) = place.process.try_wait()?
                {
                    if !status.success() {
                        return Err(format!("a process ended with {status}").into());
                    }
                    place.done = true;
                }
            }
            if Instant::now() > next {
                next = Instant::now() + PAUSE.mul_f64(0.5 + fastrand::f64());
                self.disturb_once()?;
            }
        }
        Ok(())
    }

    fn disturb_once(&mut self) -> Result<(), Problem> {
        match fastrand::u32(0..4) {
            0 => {
                let steps = [1i64, 5_000, 3_600_000];
                let millis = steps[fastrand::usize(0..steps.len())];
                self.client.execute(SET_BACK, &[&millis])?;
                self.happened.set += 1;
            }
            1 => {
                self.client.execute(SET_AHEAD, &[])?;
                self.happened.set += 1;
            }
            act => {
                let number = fastrand::usize(0..self.places.len());
                let place = &mut self.places[number];
                if place.done || place.stopped_until.is_some() {
                    return Ok(());
                }
                if act == 2 {
                    let time = Duration::from_millis(fastrand::u64(200..2000));
                    signal(place, Signal::STOP)?;
                    place.stopped_until = Some(Instant::now() + time);
                    self.happened.stopped += 1;
                    return Ok(());
                }
                place.process.kill()?;
                place.process.wait()?;
                let made = std::fs::metadata(&place.file).map_or(0, |file| file.len() / 8);
                let left = place.left.saturating_sub(made);
                self.happened.killed += 1;
                self.places[number] = self.launch(left)?;
            }
        }
        Ok(())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        for place in &mut self.places {
            // It has ended, or is not needed any more.
            let _ended = place.process.kill();
            let _waited = place.process.wait();
        }
    }
}

fn signal(place: &Place, signal: Signal) -> Result<(), Problem> {
    let pid = i32::try_from(place.process.id())?;
    let pid = Pid::from_raw(pid).ok_or("a process has a number")?;
    Ok(kill_process(pid, signal)?)
}
