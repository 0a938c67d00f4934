//! One server: making its data directory, starting and stopping it.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Seek, SeekFrom, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::clock::Clock;
use super::instance::{self, Instance, Linger};
use super::tools::{Answer, Tools, failure, output_of, run, text_of};
use super::{ClusterError, StopMode, psql};

/// For throw-away use, but commits are durable, as far as the place of the files is.
const SETTINGS: [(&str, &str); 8] = [
    ("listen_addresses", "127.0.0.1"),
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("max_connections", "200"),
    // Room for several processes with ten thousand advisory locks each.
    ("max_locks_per_transaction", "512"),
    ("shared_buffers", "128MB"),
    ("log_min_messages", "warning"),
    // Loaded once, and not in each session.
    ("shared_preload_libraries", "plpgsql"),
];

const LOG_LINES: usize = 20;

/// How long the remains of a killed server may block the next start.
const RESTART_PATIENCE: Duration = Duration::from_secs(10);

/// A server in its directory.
#[derive(Debug)]
pub(super) struct Server {
    tools: Tools,
    instance: Instance,
    port: u16,
    /// The server's clock, if it can be set.
    clock: Option<Clock>,
    /// Whether the server goes with this value.
    owned: bool,
}

impl Server {
    /// Makes a data directory, without starting the server: a copy of the one that `like` began
    /// with, or a new one, which takes longer.
    pub(super) fn create(
        tools: Tools,
        kind: &str,
        linger: Linger,
        like: Option<&Self>,
        settings: &[(&str, &str)],
    ) -> Result<Self, ClusterError> {
        instance::sweep(&tools)?;
        let instance = Instance::create(kind, linger, &tools)?;
        let server = Self {
            tools,
            instance,
            port: 0,
            clock: None,
            owned: true,
        };
        if let Some(like) = like {
            server.copy(&like.pristine(), &server.data_dir())?;
        } else {
            server.tools.installation().check_version()?;
            let mut initdb = server.tools.command("initdb")?;
            initdb
                .args(["--auth=trust", "--username=postgres", "--encoding=UTF8"])
                .args(["--locale=C", "--no-sync", "--pgdata"])
                .arg(server.data_dir());
            run(&mut initdb)?;
        }
        // A list, in which a comma would end the path.
        let socket_dir = format!("\"{}\"", server.dir().display());
        server.configure(&SETTINGS)?;
        server.configure(&[("unix_socket_directories", &socket_dir)])?;
        server.configure(settings)?;
        Ok(server)
    }

    /// Keeps a copy of the data directory, for others to begin with.
    pub(super) fn keep_pristine(&self) -> Result<(), ClusterError> {
        self.copy(&self.data_dir(), &self.pristine())
    }

    fn pristine(&self) -> PathBuf {
        self.dir().join("pristine")
    }

    fn copy(&self, from: &Path, to: &Path) -> Result<(), ClusterError> {
        run(self.tools.command("/bin/cp")?.arg("-Rp").arg(from).arg(to))
    }

    /// Gives the server, which has not been started yet, a clock that can be set.
    pub(super) fn with_clock(mut self) -> Result<Self, ClusterError> {
        self.clock = Some(Clock::create(self.dir(), &self.tools)?);
        Ok(self)
    }

    pub(super) fn has_clock(&self) -> bool {
        self.clock.is_some()
    }

    /// Sets the clock ahead, or back.
    pub(super) fn set_clock(&self, by: Duration, ahead: bool) -> Result<(), ClusterError> {
        let clock = self.clock.as_ref().ok_or(ClusterError::NoClock)?;
        clock.set(by, ahead)
    }

    /// Starts the server for the first time, on a free port.
    pub(super) fn launch(&mut self) -> Result<(), ClusterError> {
        let mut tries = 0;
        loop {
            self.port = free_port()?;
            self.configure(&[("port", &self.port.to_string())])?;
            match self.start_once() {
                // Another process took the port since.
                Err(ClusterError::Start { log, .. })
                    if tries < 10 && log.contains("could not bind") =>
                {
                    tries += 1;
                }
                done => return done,
            }
        }
    }

    /// Lets other processes find the server, which from now on outlives this value.
    pub(super) fn publish(mut self) -> Result<Self, ClusterError> {
        let draft = self.dir().join("port.new");
        fs::write(&draft, self.port.to_string())
            .and_then(|()| fs::rename(&draft, self.dir().join("port")))
            .map_err(ClusterError::io("publishing the server's port"))?;
        self.owned = false;
        Ok(self)
    }

    /// Joins the users of a published server, if it is alive; gives the programs back if not.
    pub(super) fn join(tools: Tools, dir: &Path) -> Result<Self, Tools> {
        let port = fs::read_to_string(dir.join("port"))
            .ok()
            .and_then(|text| text.parse().ok());
        let (Some(port), Some(instance)) = (port, Instance::join(dir)) else {
            return Err(tools);
        };
        let start = Instant::now();
        let mut recovers = true;
        while !serves(&tools, port) {
            match tools.ask(dir, port) {
                // It recovers after a crash of one of its processes.
                Ok(Answer::Busy) if start.elapsed() < RESTART_PATIENCE => {
                    recovers = true;
                    thread::sleep(Duration::from_millis(50));
                }
                // It has recovered since.
                Ok(Answer::Ready) if recovers => recovers = false,
                _ => return Err(tools),
            }
        }
        Ok(Self {
            tools,
            instance,
            port,
            clock: None,
            owned: false,
        })
    }

    /// Starts the server again on its port; does nothing if it runs.
    pub(super) fn start(&self) -> Result<(), ClusterError> {
        if self.tools.ask(self.dir(), self.port)? == Answer::Ready {
            return Ok(());
        }
        let start = Instant::now();
        loop {
            match self.start_once() {
                // Processes of a killed server are still ending, or its port is not free yet.
                Err(ClusterError::Start { log, .. })
                    if start.elapsed() < RESTART_PATIENCE
                        && ["pre-existing shared memory block", "could not bind"]
                            .iter()
                            .any(|reason| log.contains(reason)) =>
                {
                    thread::sleep(Duration::from_millis(100));
                }
                done => return done,
            }
        }
    }

    /// Stops the server; does nothing if it does not run.
    pub(super) fn stop(&self, mode: StopMode) -> Result<(), ClusterError> {
        if !self.answers()? {
            return Ok(());
        }
        let mut command = self.tools.command("pg_ctl")?;
        command.args(["stop", "-w", "-t", "120", "-m", mode.name(), "-D"]);
        command.arg(self.data_dir());
        let output = output_of(&mut command)?;
        // It may have ended by itself in between.
        if output.status.success() || !self.answers()? {
            Ok(())
        } else {
            Err(failure(&command, &output))
        }
    }

    /// Makes every later start a start as a standby.
    pub(super) fn make_standby(&self) -> Result<(), ClusterError> {
        let signal = self.data_dir().join("standby.signal");
        fs::write(&signal, "").map_err(ClusterError::io("making standby.signal"))?;
        self.tools.hand_over(&signal)?;
        self.configure(&[("hot_standby", "on")])
    }

    /// Copies the data directory at a clean end, twice.
    pub(super) fn cut_replication(&self) -> Result<(), ClusterError> {
        self.stop(StopMode::Fast)?;
        for standby in self.standby_dirs() {
            // One that was made before has missed more.
            match fs::remove_dir_all(&standby) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(ClusterError::io("removing a standby")(error));
                }
                _ => {}
            }
            self.copy(&self.data_dir(), &standby)?;
        }
        self.start()
    }

    /// A copy takes the place of the data directory, on a timeline of its own.
    pub(super) fn fail_over(&self) -> Result<(), ClusterError> {
        self.stop(StopMode::Immediate)?;
        let replacing = "replacing the server by its standby";
        let mut standbys = self.standby_dirs().into_iter();
        let standby = standbys.find(|standby| standby.exists());
        let standby = standby.ok_or(ClusterError::Foreign("standby"))?;
        fs::remove_dir_all(self.data_dir()).map_err(ClusterError::io(replacing))?;
        fs::rename(standby, self.data_dir()).map_err(ClusterError::io(replacing))?;
        self.make_standby()?;
        self.start()?;
        let mut promote = self.tools.command("pg_ctl")?;
        promote.args(["promote", "-w", "-t", "120", "-D"]);
        run(promote.arg(self.data_dir()))
    }

    fn standby_dirs(&self) -> [PathBuf; 2] {
        ["standby", "sibling"].map(|name| self.dir().join(name))
    }

    pub(super) fn tools(&self) -> &Tools {
        &self.tools
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn url(&self) -> String {
        tcp_url(self.port)
    }

    /// The directory of everything, which also holds the socket.
    pub(super) fn dir(&self) -> &Path {
        self.instance.dir()
    }

    pub(super) fn data_dir(&self) -> PathBuf {
        self.dir().join("data")
    }

    fn answers(&self) -> Result<bool, ClusterError> {
        // Before the first start there is no port to ask on.
        Ok(self.port != 0 && self.tools.ask(self.dir(), self.port)? != Answer::Nothing)
    }

    /// Adds settings; the last of a name counts.
    fn configure(&self, settings: &[(&str, &str)]) -> Result<(), ClusterError> {
        let mut text = String::new();
        for (name, value) in settings {
            let value = value.replace('\\', "\\\\").replace('\'', "''");
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name} = '{value}'");
        }
        OpenOptions::new()
            .append(true)
            .open(self.data_dir().join("postgresql.conf"))
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(ClusterError::io("writing postgresql.conf"))
    }

    fn start_once(&self) -> Result<(), ClusterError> {
        if !self.answers()? {
            // Lock files of a killed server. The server itself would take them for valid if its
            // process number had passed to another process.
            let socket_lock = format!(".s.PGSQL.{}.lock", self.port);
            let _ = fs::remove_file(self.data_dir().join("postmaster.pid"));
            let _ = fs::remove_file(self.dir().join(socket_lock));
        }
        let log = self.dir().join("server.log");
        let log_start = fs::metadata(&log).map_or(0, |meta| meta.len());
        let mut command = self.tools.command("pg_ctl")?;
        command.args(["start", "-w", "-t", "120", "-D"]);
        command.arg(self.data_dir()).arg("-l").arg(&log);
        // Symbols are resolved once, and not in each session.
        command.env("LD_BIND_NOW", "1");
        if let Some(clock) = &self.clock {
            clock.give(&mut command);
        }
        let output = output_of(&mut command)?;
        if output.status.success() {
            Ok(())
        } else {
            Err(ClusterError::Start {
                output: text_of(&output),
                log: last_lines(&log, log_start),
            })
        }
    }
}

impl Drop for Server {
    /// Stops and removes an owned server. Where that fails it is left to the watchdog.
    fn drop(&mut self) {
        if self.owned && self.stop(StopMode::Immediate).is_ok() {
            let _ = fs::remove_dir_all(self.dir());
        }
    }
}

fn tcp_url(port: u16) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/postgres")
}

/// Whether a server that accepts connections also serves them: it cannot without its files.
fn serves(tools: &Tools, port: u16) -> bool {
    match psql::run(tools.client(), &tcp_url(port), "select 1") {
        Ok(_) => true,
        // It is only busy.
        Err(ClusterError::Tool { output, .. }) => ["too many clients", "connection slots"]
            .iter()
            .any(|reason| output.contains(reason)),
        Err(_) => false,
    }
}

/// A port nobody listens on, below those the system gives to outgoing connections: a client that
/// tries to reach a stopped server on one of these could connect to itself and block the port.
fn free_port() -> Result<u16, ClusterError> {
    let random = RandomState::new();
    let mut refusal = None;
    for attempt in 0..100_u8 {
        let offset = u16::try_from(random.hash_one(attempt) % 12_000).unwrap_or(0);
        match TcpListener::bind((Ipv4Addr::LOCALHOST, 20_000 + offset)) {
            Ok(_) => return Ok(20_000 + offset),
            Err(error) => refusal = Some(error),
        }
    }
    Err(ClusterError::io("finding a free port")(
        refusal.unwrap_or_else(|| std::io::ErrorKind::AddrInUse.into()),
    ))
}

/// The last lines of what was written to a log from `start` on.
fn last_lines(log: &Path, start: u64) -> String {
    let mut bytes = Vec::new();
    if let Ok(mut file) = fs::File::open(log) {
        // What cannot be read is missing in a message that is shown anyway.
        let _ = file.seek(SeekFrom::Start(start));
        let _ = file.read_to_end(&mut bytes);
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}
