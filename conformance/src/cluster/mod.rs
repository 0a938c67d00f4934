//! A private throw-away `PostgreSQL` server for tests, demo and benches.
//!
//! [`Cluster::shared`] gives all the processes of a test run the same server, [`Cluster::private`]
//! gives the caller one of its own to stop and crash, and [`Cluster::standby`] one that stays in
//! recovery. Nothing has to be set up beforehand but an installed server, and nothing stays behind:
//! a small shell process watches over each server and removes it after its last user has ended,
//! however that ended.
//!
//! A server runs with `fsync` and `synchronous_commit` on, so commits cost what they cost in
//! production and survive a crash. It accepts everybody who reaches it on this machine, as the
//! superuser `postgres` and without a password.

#![forbid(unsafe_code)]

mod clock;
mod error;
mod find;
mod instance;
mod psql;
mod server;
mod shared;
mod tools;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use std::{env, fmt::Write as _};

pub use error::ClusterError;

use instance::Linger;
use server::Server;
use tools::Tools;

/// How [`Cluster::stop`] stops the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    /// Rolls back what is open, disconnects all clients and shuts down cleanly.
    Fast,
    /// Aborts the server like a crash: the next start has to recover from the log.
    Immediate,
}

impl StopMode {
    fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Immediate => "immediate",
        }
    }
}

/// A `PostgreSQL` server to test against.
#[derive(Debug)]
pub struct Cluster {
    url: String,
    /// `None`: the server of `DATABASE_URL`.
    server: Option<Server>,
}

impl Cluster {
    /// Returns the server that all processes of this user share, and starts it if there is none.
    ///
    /// It is kept for a few seconds after its last user process has ended, so that processes that
    /// run one after the other find it running. The databases in it are common to all: tests have
    /// to choose names that do not collide. A server that was found dead is replaced by a new one.
    ///
    /// If the environment variable `DATABASE_URL` is set, nothing is started and that server is
    /// used.
    ///
    /// # Errors
    ///
    /// If no installed server is found, or it cannot be started.
    pub fn shared() -> Result<&'static Self, ClusterError> {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        static STARTING: Mutex<()> = Mutex::new(());

        let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cluster) = SHARED.get() {
            return Ok(cluster);
        }
        let cluster = match env::var_os("DATABASE_URL") {
            Some(url) if !url.is_empty() => Self {
                url: url.to_string_lossy().into_owned(),
                server: None,
            },
            _ => Self::of(shared::find_or_start()?),
        };
        Ok(SHARED.get_or_init(|| cluster))
    }

    /// Starts a server of the caller's own, with additional settings of its `postgresql.conf`.
    ///
    /// The server is stopped and removed when the value is dropped or the process ends. The
    /// settings `port`, `listen_addresses` and `unix_socket_directories` are not the caller's to
    /// choose.
    ///
    /// # Errors
    ///
    /// If no installed server is found, or it cannot be started, for example because it does not
    /// know one of the settings. The error then carries the end of the server's log.
    pub fn private(settings: &[(&str, &str)]) -> Result<Self, ClusterError> {
        let mut server = Self::create(settings)?;
        server.launch()?;
        Ok(Self::of(server))
    }

    /// The same with a clock of the time of day that can be set; see [`Cluster::set_clock`].
    ///
    /// # Errors
    ///
    /// As [`Cluster::private`], and if libfaketime is not installed.
    pub fn with_clock() -> Result<Self, ClusterError> {
        let mut server = Self::create(&[])?.with_clock()?;
        server.launch()?;
        Ok(Self::of(server))
    }

    /// Sets the clock of [`Cluster::with_clock`] ahead, or back.
    ///
    /// # Errors
    ///
    /// If the server has no such clock.
    pub fn set_clock(&self, by: Duration, ahead: bool) -> Result<(), ClusterError> {
        self.server("clock")?.set_clock(by, ahead)
    }

    /// Whether there can be one [`with_clock`](Self::with_clock) on this machine.
    #[must_use]
    pub fn may_have_clock() -> bool {
        clock::library().is_some()
    }

    /// Whether it has a clock that can be set.
    #[must_use]
    pub fn has_clock(&self) -> bool {
        self.server.as_ref().is_some_and(Server::has_clock)
    }

    fn create(settings: &[(&str, &str)]) -> Result<Server, ClusterError> {
        let like = Self::shared()
            .ok()
            .and_then(|shared| shared.server.as_ref());
        Server::create(Tools::find()?, "p", Linger::Seconds(0), like, settings)
    }

    /// Starts a server of the caller's own that is permanently in recovery, like the standby of a
    /// primary that is never heard of: it answers queries and refuses to write. Before, it runs
    /// `scripts`.
    ///
    /// It is stopped and removed as with [`Cluster::private`].
    ///
    /// # Errors
    ///
    /// If no installed server is found, or it cannot be started.
    pub fn standby(scripts: &[&str]) -> Result<Self, ClusterError> {
        let mut server = Self::create(&[])?;
        server.launch()?;
        for script in scripts {
            psql::run(server.tools().client(), &server.url(), script)?;
        }
        // Recovery has to begin at a clean end, or it would wait for more of the log.
        server.stop(StopMode::Fast)?;
        server.make_standby()?;
        server.start()?;
        Ok(Self::of(server))
    }

    fn of(server: Server) -> Self {
        Self {
            url: server.url(),
            server: Some(server),
        }
    }

    fn server(&self, wanted: &'static str) -> Result<&Server, ClusterError> {
        self.server.as_ref().ok_or(ClusterError::Foreign(wanted))
    }

    /// Returns the URL to connect to over TCP on the loopback interface, or `DATABASE_URL`.
    ///
    /// It stays the same when the server is stopped and started.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the URL to connect to over the Unix socket, in the form that `libpq`, `sqlx` and
    /// `tokio-postgres` read: the socket's directory, percent-encoded, in the place of the host.
    ///
    /// # Errors
    ///
    /// If the server is that of `DATABASE_URL`.
    pub fn socket_url(&self) -> Result<String, ClusterError> {
        let server = self.server("socket")?;
        let mut host = String::new();
        for byte in server.dir().as_os_str().as_encoded_bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
                host.push(char::from(*byte));
            } else {
                // Writing to a string does not fail.
                let _ = write!(host, "%{byte:02X}");
            }
        }
        Ok(format!(
            "postgres://postgres@{host}:{}/postgres",
            server.port()
        ))
    }

    /// Returns the port on the loopback interface.
    ///
    /// # Errors
    ///
    /// If the server is that of `DATABASE_URL`.
    pub fn port(&self) -> Result<u16, ClusterError> {
        Ok(self.server("port")?.port())
    }

    /// Returns the directory of the server's programs.
    ///
    /// # Errors
    ///
    /// If the server is that of `DATABASE_URL`.
    pub fn bin_dir(&self) -> Result<&Path, ClusterError> {
        Ok(self.server("directory of programs")?.tools().bin_dir())
    }

    /// Returns the server's data directory.
    ///
    /// # Errors
    ///
    /// If the server is that of `DATABASE_URL`.
    pub fn data_dir(&self) -> Result<PathBuf, ClusterError> {
        Ok(self.server("data directory")?.data_dir())
    }

    /// Stops the server and waits until it has ended; does nothing if it is not running.
    ///
    /// A shared server cannot be stopped: [`Cluster::shared`] does not give it out mutably.
    ///
    /// # Errors
    ///
    /// If the server does not end in two minutes.
    pub fn stop(&mut self, mode: StopMode) -> Result<(), ClusterError> {
        self.server("way to stop it")?.stop(mode)
    }

    /// Starts the stopped (or killed) server on its old port and waits until it accepts
    /// connections; does nothing if it is running.
    ///
    /// # Errors
    ///
    /// If the server does not start. The error carries the end of its log.
    pub fn start(&mut self) -> Result<(), ClusterError> {
        self.server("way to start it")?.start()
    }

    /// Makes a standby that receives nothing from now on, for which the server is restarted.
    ///
    /// # Errors
    ///
    /// If the files cannot be copied, or the server does not start again.
    pub fn cut_replication(&mut self) -> Result<(), ClusterError> {
        self.server("way to make a standby")?.cut_replication()
    }

    /// Loses the server, and has the standby take over on its port.
    ///
    /// # Errors
    ///
    /// If there is no standby, or it does not start.
    pub fn fail_over(&mut self) -> Result<(), ClusterError> {
        self.server("standby")?.fail_over()
    }

    /// Runs SQL with `psql` and returns what it printed: a line for each row, the columns separated
    /// by `|`, without headings and without the last line end.
    ///
    /// Every statement is a transaction of its own; the first that fails ends it.
    ///
    /// # Errors
    ///
    /// If `psql` cannot be run, or a statement fails. The error carries what `psql` wrote.
    pub fn psql(&self, sql: &str) -> Result<String, ClusterError> {
        let command = match &self.server {
            Some(server) => server.tools().client(),
            // The settings in the environment (a password, say) are meant for this server.
            None => Command::new("psql"),
        };
        psql::run(command, &self.url, sql)
    }
}
