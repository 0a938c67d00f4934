//! The programs: child processes, which are started again when they were killed.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Result;
use crate::args::{Control, Library, Program, Role, arguments};
use crate::history::Turn;
use crate::log::{Kind, Nanos, now, were_granted};
use crate::programs::{Phase, URL};
use crate::proxy::Proxy;
use crate::server::USER;
use crate::wire::Wire;

/// A place that programs take one after the other.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) proxy: Proxy,
    /// Whether its sessions last.
    pooled: bool,
    /// The network of its own, if it has one.
    pub(crate) wire: Option<Wire>,
    process: Mutex<Option<Child>>,
    /// When the next one begins, if there is none.
    next: Mutex<Option<Instant>>,
}

/// A program that ran, or runs.
#[derive(Clone, Debug)]
pub(crate) struct Incarnation {
    /// Of its log.
    pub(crate) number: u64,
    pub(crate) place: usize,
    pub(crate) name: String,
    pub(crate) role: Role,
    /// Whether it is behind the pooler.
    pub(crate) pooled: bool,
    pub(crate) log: PathBuf,
    pub(crate) errors: PathBuf,
    pub(crate) begun: Nanos,
    pub(crate) ended: Option<Nanos>,
    /// When it was stopped and went on.
    pub(crate) stops: Vec<(Nanos, Nanos)>,
}

#[derive(Debug)]
pub(crate) struct Crew {
    pub(crate) places: Vec<Place>,
    incarnations: Mutex<Vec<Incarnation>>,
    dir: PathBuf,
    control: Option<Control>,
    /// Programs that ended without being told to.
    fallen: Mutex<Vec<String>>,
}

impl Crew {
    /// So many programs that use a library, and two that know SQL.
    pub(crate) fn new(
        programs: usize,
        (server, pooler): (u16, Option<u16>),
        mut wire: Option<(usize, Wire)>,
        dir: PathBuf,
        control: Option<Control>,
    ) -> Result<Self> {
        let mut places = Vec::new();
        for turn in 0..programs + 2 {
            let library = Library::ALL[turn % 3];
            // Six kinds, and the seventh and eighth are behind the pooler.
            let blocking = (turn / 3) % 2 == 1;
            let pooled = pooler.is_some() && turn % 8 >= 6 && turn < programs;
            let (role, name) = if turn < programs {
                let face = if blocking { "blocking" } else { "async" };
                let mode = if pooled { ", pooled" } else { "" };
                let name = format!("p{} ({} {face}{mode})", turn + 1, library.name());
                (Role::Library { library, blocking }, name)
            } else {
                (Role::Plain, format!("p{} (plain SQL)", turn + 1))
            };
            let port = pooler.filter(|_| pooled).unwrap_or(server);
            let wire = wire.take_if(|(place, _)| *place == turn);
            let wire = wire.map(|(_, wire)| wire);
            let address = wire.as_ref().map_or(Ipv4Addr::LOCALHOST, Wire::address);
            places.push(Place {
                name,
                role,
                proxy: Proxy::start(address, port)?,
                pooled,
                wire,
                process: Mutex::new(None),
                next: Mutex::new(None),
            });
        }
        let crew = Self {
            places,
            incarnations: Mutex::default(),
            dir,
            control,
            fallen: Mutex::default(),
        };
        for place in 0..crew.places.len() {
            crew.launch(place)?;
        }
        Ok(crew)
    }

    fn incarnations_mut(&self) -> MutexGuard<'_, Vec<Incarnation>> {
        self.incarnations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn incarnations(&self) -> Vec<Incarnation> {
        self.incarnations_mut().clone()
    }

    /// Programs that ended without being told to.
    pub(crate) fn fallen(&self) -> Vec<String> {
        self.fallen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn process(&self, place: usize) -> MutexGuard<'_, Option<Child>> {
        self.places[place]
            .process
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self, place: usize) -> MutexGuard<'_, Option<Instant>> {
        let next = self.places[place].next.lock();
        next.unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a program in a place. It ends with the thread that starts it.
    fn launch(&self, place: usize) -> Result<()> {
        let Place {
            name,
            role,
            proxy,
            pooled,
            wire,
            ..
        } = &self.places[place];
        let mut incarnations = self.incarnations_mut();
        let number = incarnations.len() as u64 + 1;
        let log = self.dir.join(format!("{number}.log"));
        let errors = self.dir.join(format!("{number}.err"));
        let program = Program {
            role: *role,
            number,
            log: log.clone(),
            control: self.control,
        };
        let url = format!(
            "postgres://{USER}@{}/postgres?application_name=program{}",
            proxy.address(),
            place + 1
        );
        File::create(&log)?;
        let mut words: Vec<OsString> = Vec::new();
        if let Some(wire) = wire {
            words.extend(wire.entry().map(OsString::from));
        }
        words.push(std::env::current_exe()?.into());
        words.extend(arguments(&program).into_iter().map(OsString::from));
        let child = Command::new(&words[0])
            .args(&words[1..])
            .env(URL, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(File::create(&errors)?)
            // The interrupt key is meant for this process.
            .process_group(0)
            .spawn()?;
        incarnations.push(Incarnation {
            number,
            place,
            name: name.clone(),
            role: *role,
            pooled: *pooled,
            log,
            errors,
            begun: now(),
            ended: None,
            stops: Vec::new(),
        });
        drop(incarnations);
        *self.process(place) = Some(child);
        Ok(())
    }

    fn with_last(&self, place: usize, note: impl FnOnce(&mut Incarnation)) {
        let mut incarnations = self.incarnations_mut();
        if let Some(last) = incarnations.iter_mut().rev().find(|it| it.place == place) {
            note(last);
        }
    }

    /// Kills the program of a place, and has another one begin later; answers whether there was one.
    pub(crate) fn kill(&self, place: usize, pause: Duration) -> Result<bool> {
        let Some(mut child) = self.process(place).take() else {
            return Ok(false);
        };
        child.kill()?;
        let status = child.wait()?;
        let is_killed = status.signal() == Some(9);
        if !is_killed {
            // It had ended by itself, and nobody had looked since.
            self.fell(place, &format!("ended with {status}"));
        }
        self.with_last(place, |it| it.ended = Some(now()));
        *self.next(place) = Some(Instant::now() + pause);
        Ok(is_killed)
    }

    /// Stops the program of a place for a time; answers whether it was there throughout.
    pub(crate) fn stop(&self, place: usize, time: Duration) -> Result<bool> {
        let from = now();
        let pid = match &*self.process(place) {
            Some(child) => {
                let pid = Pid::from_child(child);
                kill_process(pid, Signal::STOP)?;
                pid
            }
            None => return Ok(false),
        };
        std::thread::sleep(time);
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        let stopped = stat.is_ok_and(|stat| stat.contains(") T "));
        if let Some(child) = &*self.process(place)
            && Pid::from_child(child) == pid
        {
            kill_process(pid, Signal::CONT)?;
        }
        self.with_last(place, |it| it.stops.push((from, now())));
        Ok(stopped)
    }

    /// Tells all programs what to do now.
    pub(crate) fn tell(&self, phase: Phase) {
        for place in 0..self.places.len() {
            self.tell_one(place, phase);
        }
    }

    fn tell_one(&self, place: usize, phase: Phase) {
        if let Some(child) = &mut *self.process(place)
            && let Some(stdin) = &mut child.stdin
        {
            // One that has ended is found by `look`.
            drop(writeln!(stdin, "{}", phase.word()));
        }
    }

    /// Gives each program that uses a library a turn, while all others rest: until it was granted one of everything
    /// that it holds, or patience is over.
    pub(crate) fn turns(&self, patience: Duration) -> Result<Vec<Turn>> {
        let mut turns = Vec::new();
        self.tell(Phase::Rest);
        for (number, place) in self.places.iter().enumerate() {
            let incarnations = self.incarnations();
            let last = incarnations.iter().rev().find(|it| it.place == number);
            let Some(program) = last.filter(|_| place.role != Role::Plain) else {
                continue;
            };
            let mut kinds = vec![Kind::Lease, Kind::Term, Kind::LeasedMutex, Kind::Semaphore];
            if !place.pooled {
                kinds.push(Kind::Mutex);
            }
            let (start, from) = (Instant::now(), now());
            let length = std::fs::metadata(&program.log)?.len();
            self.tell_one(number, Phase::Turn);
            while start.elapsed() < patience && !were_granted(&program.log, length, &kinds)? {
                std::thread::sleep(Duration::from_millis(50));
            }
            self.tell_one(number, Phase::Rest);
            turns.push(Turn {
                program: program.number,
                kinds,
                from,
                to: now(),
            });
        }
        Ok(turns)
    }

    /// The process of a place, if there is one.
    pub(crate) fn pid(&self, place: usize) -> Option<i32> {
        let process = self.process(place);
        let child = process.as_ref()?;
        Some(Pid::from_child(child).as_raw_nonzero().get())
    }

    /// Starts again what is not there. To be called by the thread that made this, which lives longest.
    pub(crate) fn look(&self) -> Result<()> {
        for place in 0..self.places.len() {
            let status = match &mut *self.process(place) {
                Some(child) => child.try_wait()?,
                None => None,
            };
            if let Some(status) = status {
                self.fell(place, &format!("ended with {status}"));
                self.with_last(place, |it| it.ended = Some(now()));
                self.launch(place)?;
            }
            let due = self.next(place).take_if(|next| *next <= Instant::now());
            if due.is_some() {
                self.launch(place)?;
            }
        }
        Ok(())
    }

    fn fell(&self, place: usize, how: &str) {
        let mut text = String::new();
        self.with_last(place, |it| {
            let errors = std::fs::read_to_string(&it.errors).unwrap_or_default();
            let lines: Vec<_> = errors.lines().collect();
            let last = lines[lines.len().saturating_sub(8)..].join("\n    ");
            text = format!("{} {how}: {last}", it.name);
        });
        self.fallen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(text);
    }

    /// Waits until all programs have ended after they were told to; kills those that do not.
    pub(crate) fn end(&self, patience: Duration) -> Result<()> {
        let start = Instant::now();
        for place in 0..self.places.len() {
            let Some(mut child) = self.process(place).take() else {
                continue;
            };
            let status = loop {
                if let Some(status) = child.try_wait()? {
                    break Some(status);
                }
                if start.elapsed() > patience {
                    break None;
                }
                std::thread::sleep(Duration::from_millis(20));
            };
            match status {
                Some(status) if status.success() => {}
                Some(status) => self.fell(place, &format!("ended with {status}")),
                None => {
                    child.kill()?;
                    child.wait()?;
                    self.fell(place, &format!("does not end within {patience:?}"));
                }
            }
            self.with_last(place, |it| it.ended = Some(now()));
        }
        Ok(())
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for place in 0..self.places.len() {
            if let Some(mut child) = self.process(place).take() {
                // It may have ended.
                drop(child.kill());
                drop(child.wait());
            }
        }
    }
}
