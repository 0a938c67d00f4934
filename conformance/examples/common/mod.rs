//! Processes of an example on three libraries by turns, which are killed and stopped while they work
//! and record what they did.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockapi::Backend;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

pub(crate) type Problem = Box<dyn std::error::Error>;

/// How much is recorded in a file.
pub(crate) type Recorded = fn(&Path) -> Result<u64, Problem>;

pub(crate) struct Crew {
    url: String,
    recorded: Recorded,
    folder: TempDir,
    places: Vec<Place>,
    /// What each process recorded, also of those that were killed.
    pub(crate) files: Vec<PathBuf>,
    /// Those of processes that were killed, which may have done more than they recorded.
    pub(crate) killed: Vec<PathBuf>,
    pub(crate) stopped: usize,
}

/// A process, and what is to be done by it and its replacements.
struct Place {
    process: Child,
    file: PathBuf,
    left: u64,
    stopped_until: Option<Instant>,
    done: bool,
}

impl Crew {
    /// Starts processes that do so much together: this program, with `--worker` and what
    /// [`Task::read`] reads.
    pub(crate) fn start(
        url: &str,
        recorded: Recorded,
        processes: u64,
        work: u64,
    ) -> Result<Self, Problem> {
        if processes == 0 || work < processes {
            return Err(format!(
                "{processes} processes for {work} in all; allowed are 1 or more processes, with one or more for each"
            )
            .into());
        }
        let mut crew = Self {
            url: url.to_owned(),
            recorded,
            folder: tempfile::tempdir()?,
            places: Vec::new(),
            files: Vec::new(),
            killed: Vec::new(),
            stopped: 0,
        };
        for number in 0..processes {
            let place = crew.launch(work / processes + u64::from(number < work % processes))?;
            crew.places.push(place);
        }
        Ok(crew)
    }

    /// Kills and stops processes until all is done, one about every `pause`. `other` does something else now and then, or
    /// answers that it has nothing to do.
    pub(crate) fn disturb(
        &mut self,
        pause: Duration,
        mut other: impl FnMut() -> Result<bool, Problem>,
    ) -> Result<(), Problem> {
        let mut next = Instant::now() + pause;
        while self.places.iter().any(|place| !place.done) {
            std::thread::sleep(Duration::from_millis(20));
            for place in &mut self.places {
                place.look()?;
            }
            if Instant::now() > next {
                next = Instant::now() + pause.mul_f64(0.5 + fastrand::f64());
                if fastrand::bool() && other()? {
                    continue;
                }
                self.disturb_one()?;
            }
        }
        Ok(())
    }

    fn disturb_one(&mut self) -> Result<(), Problem> {
        let number = fastrand::usize(0..self.places.len());
        let place = &mut self.places[number];
        if place.done || place.stopped_until.is_some() {
            return Ok(());
        }
        if fastrand::bool() {
            let time = Duration::from_millis(fastrand::u64(200..2000));
            place.signal(Signal::STOP)?;
            place.stopped_until = Some(Instant::now() + time);
            self.stopped += 1;
            return Ok(());
        }
        // It may have ended by itself, and failed.
        place.look()?;
        if place.done {
            return Ok(());
        }
        place.process.kill()?;
        place.process.wait()?;
        let left = place.left.saturating_sub((self.recorded)(&place.file)?);
        self.killed.push(place.file.clone());
        self.places[number] = self.launch(left)?;
        Ok(())
    }

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
}

/// What a program ends with: 1 if it found what must not be, 2 or 3 if it found out nothing.
pub(crate) fn exit(ran: Result<bool, Problem>) -> ExitCode {
    match ran {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("{problem}");
            if problem.is::<lexopt::Error>() {
                eprintln!("Try --help.");
                return ExitCode::from(2);
            }
            ExitCode::from(3)
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for place in &mut self.places {
            // It has ended, or is not needed any more.
            let _ended = place.process.kill();
            let _waited = place.process.wait();
        }
    }
}

impl Place {
    /// Lets it go on after a stop, and sees whether it is done.
    fn look(&mut self) -> Result<(), Problem> {
        if self
            .stopped_until
            .is_some_and(|until| until < Instant::now())
        {
            self.stopped_until = None;
            self.signal(Signal::CONT)?;
        }
        if !self.done
            && let Some(status) = self.process.try_wait()?
        {
            if !status.success() {
                return Err(format!("a process ended with {status}").into());
            }
            self.done = true;
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<(), Problem> {
        Ok(kill_process(Pid::from_child(&self.process), signal)?)
    }
}

/// What a process is to do.
pub(crate) struct Task {
    library: String,
    pub(crate) url: String,
    /// Where it records it.
    pub(crate) file: PathBuf,
    /// How much it is.
    pub(crate) work: u64,
}

impl Task {
    /// Reads what follows `--worker`. The process ends with the one that started it.
    pub(crate) fn read(arguments: &[OsString]) -> Result<Self, Problem> {
        let [library, url, file, work] = arguments else {
            return Err("a library, a URL, a file and a number".into());
        };
        let text = |argument: &OsString| argument.to_str().map(str::to_owned).ok_or("a text");
        // One that is stopped does not read, but can be killed.
        #[cfg(target_os = "linux")]
        {
            use rustix::process::set_parent_process_death_signal;
            // Where that fails, the pipe is left.
            let _ = set_parent_process_death_signal(Some(Signal::KILL));
        }
        std::thread::spawn(|| {
            // Nothing is sent: either end of the input is that end.
            let _end = std::io::stdin().read(&mut [0]);
            std::process::exit(1);
        });
        Ok(Self {
            library: text(library)?,
            url: text(url)?,
            file: file.into(),
            work: text(work)?.parse()?,
        })
    }

    /// Without a URL it has a database of its own, in memory.
    pub(crate) async fn connect(&self) -> lockapi::Result<Arc<dyn Backend>> {
        loop {
            let connected = match &*self.library {
                _ if self.url.is_empty() => lockapi::memory::Database::new().connect().await,
                "sqlx" => lockapi_sqlx::connect_url(&self.url).await,
                "diesel" => lockapi_diesel::connect_url(&self.url).await,
                _ => lockapi_postgres::connect_url(&self.url).await,
            };
            match connected {
                // It was stopped meanwhile, or the machine is busy.
                Err(error) if error.is_retryable() => eprintln!("once more: {error}"),
                connected => return connected,
            }
        }
    }
}
