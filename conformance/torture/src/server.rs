//! The server that all programs share.

use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lockapi::rights::{Role, grants};
use lockapi_conformance::cluster::{Cluster, StopMode};
use postgres::{Client, Config, NoTls};

use crate::Result;
use crate::disk::Disk;
use crate::programs::{KEYS, limited};

/// The role of all programs: no more than the library says that it needs, and its own tables.
pub(crate) const USER: &str = "tortured";
/// How the sessions of this process are named.
const NAME: &str = "conductor";

/// With these a full lock table or all connections are quickly reached.
const LOCKS: u32 = 10;

const SCHEMA: &str = include_str!("schema.sql");

pub(crate) struct Server {
    cluster: Mutex<Cluster>,
    port: u16,
    url: String,
    disk: Option<Disk>,
}

impl Server {
    /// Starts one for so many programs, with a clock that can be set, or with its log on a disk that can be full.
    pub(crate) fn start(programs: usize, clock: bool, small_disk: bool) -> Result<Self> {
        let mut cluster = if clock {
            Cluster::with_clock()?
        } else {
            Cluster::private(&[])?
        };
        let connections = 40 + programs * 18;
        cluster.psql(&format!(
            "ALTER SYSTEM SET max_connections = {connections};
             ALTER SYSTEM SET superuser_reserved_connections = 10;
             ALTER SYSTEM SET max_locks_per_transaction = {LOCKS};
             ALTER SYSTEM SET shared_buffers = '64MB';
             ALTER SYSTEM SET restart_after_crash = on;
             ALTER SYSTEM SET min_wal_size = '32MB';
             ALTER SYSTEM SET max_wal_size = '64MB';
             ALTER SYSTEM SET log_min_messages = error;
             ALTER SYSTEM SET log_min_error_statement = panic;
             ALTER SYSTEM SET log_lock_waits = on"
        ))?;
        cluster.stop(StopMode::Fast)?;
        let disk = if small_disk {
            Some(Disk::mount(&cluster.data_dir()?.join("pg_wal"))?)
        } else {
            None
        };
        cluster.start()?;
        let counters = KEYS.map(|key| format!("('{key}', 0)")).join(", ");
        let backend =
            lockapi::blocking::Backend::connect(lockapi_postgres::connect_url(cluster.url()))?;
        backend.migrate()?;
        limited::prepare(&backend)?;
        backend.close()?;
        cluster.psql(SCHEMA)?;
        cluster.psql(&format!(
            "INSERT INTO torture.counter (name, n) VALUES {counters};
             CREATE ROLE {USER} LOGIN;
             GRANT USAGE ON SCHEMA torture TO {USER};
             GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA torture TO {USER};"
        ))?;
        for role in [Role::Worker, Role::Operator] {
            cluster.psql(&grants(role, USER)?)?;
        }
        Ok(Self {
            port: cluster.port()?,
            url: cluster.url().to_owned(),
            cluster: Mutex::new(cluster),
            disk,
        })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }

    pub(crate) fn cluster(&self) -> MutexGuard<'_, Cluster> {
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session of this process, as the superuser.
    pub(crate) fn client(&self) -> Result<Client> {
        let mut config: Config = self.url.parse()?;
        config
            .application_name(NAME)
            .connect_timeout(Duration::from_secs(5))
            .tcp_user_timeout(Duration::from_secs(15));
        let mut client = config.connect(NoTls)?;
        client.batch_execute("SET statement_timeout = '30s'")?;
        Ok(client)
    }

    /// The same, once the server serves again.
    pub(crate) fn patient_client(&self, patience: Duration) -> Result<Client> {
        let start = Instant::now();
        loop {
            match self.client() {
                Err(error) if start.elapsed() > patience => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
                opened => return opened,
            }
        }
    }

    /// Undoes what a fault may have left that was broken off.
    pub(crate) fn calm(client: &mut Client) -> Result<()> {
        client.batch_execute(&format!("ALTER ROLE {USER} RESET ALL"))?;
        // Sessions keep the settings that they began with. Those of the library have to do so.
        client.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
              WHERE usename = $1 AND application_name NOT LIKE '% lockapi'",
            &[&USER],
        )?;
        Ok(())
    }

    /// Where its own log is.
    pub(crate) fn log(&self) -> Result<PathBuf> {
        Ok(self.cluster().data_dir()?.with_file_name("server.log"))
    }

    /// What it logged of its latest end.
    pub(crate) fn last_words(&self) -> Result<String> {
        const WORDS: [&str; 5] = [
            "PANIC:",
            "was terminated by signal",
            "exited with exit code",
            "terminating any other",
            "database system is",
        ];
        let text = String::from_utf8_lossy(&fs::read(self.log()?)?).into_owned();
        let is_meant = |line: &&str| WORDS.iter().any(|word| line.contains(word));
        let lines: Vec<_> = text.lines().filter(is_meant).collect();
        Ok(lines[lines.len().saturating_sub(6)..].join("\n    "))
    }

    /// Starts the server if it does not run, and waits until it serves.
    pub(crate) fn revive(&self, patience: Duration) -> Result<()> {
        let start = Instant::now();
        loop {
            match self.cluster().start() {
                Err(error) if start.elapsed() > patience => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
                Ok(()) => break,
            }
        }
        drop(self.patient_client(patience)?);
        Ok(())
    }

    /// The process numbers of the server and of all its children.
    pub(crate) fn processes(&self) -> Result<Vec<i32>> {
        let data = self.cluster().data_dir()?;
        let text = fs::read_to_string(data.join("postmaster.pid"))?;
        let postmaster: i32 = text.lines().next().ok_or("a process number")?.parse()?;
        let mut processes = vec![postmaster];
        for entry in fs::read_dir("/proc")?.flatten() {
            let pid = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            // It may have ended since.
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let parent = stat
                .rsplit(')')
                .next()
                .and_then(|rest| rest.split_whitespace().nth(1));
            if let (Some(pid), Some(Ok(parent))) = (pid, parent.map(str::parse::<i32>))
                && parent == postmaster
            {
                processes.push(pid);
            }
        }
        Ok(processes)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Before its directory is removed, which cannot be done while a disk is mounted there.
        if self.disk.is_some() {
            drop(self.cluster().stop(StopMode::Immediate));
            self.disk = None;
        }
    }
}
