//! The database libraries that workers use, each as its own users would.

use std::io::Read;
use std::thread;
use std::time::Duration;

use crate::Result;
use crate::worker::Node;

mod diesel;
mod sqlx;
mod sync;

const BEGIN: &str = include_str!("begin.sql");
const COMPLETE: &str = include_str!("complete.sql");
const OVER: &str = include_str!("over.sql");
const REPORT: &str = include_str!("report.sql");

/// The connections that a worker's own transactions use.
const CONNECTIONS: u32 = 4;
/// What the backend may take of a pool that it shares with the worker; nobody waits for mutexes.
const CONNECTIONS_OF_BACKEND: u32 = 9;
/// With those of the backend, the most that a worker opens.
pub(crate) const CONNECTIONS_OF_WORKER: usize = 13;
/// How long a worker waits for a connection.
const PATIENCE: Duration = Duration::from_secs(5);

/// How a worker is told where the database is: arguments are visible to all users of a machine.
pub(crate) const URL: &str = "DATABASE_URL";

/// A database library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    Sqlx,
    Diesel,
    /// The blocking `postgres` crate.
    Sync,
}

impl Library {
    pub(crate) const ALL: [Self; 3] = [Self::Sqlx, Self::Diesel, Self::Sync];

    /// How it is called in an argument and in the names of workers.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Sqlx => "sqlx",
            Self::Diesel => "diesel",
            Self::Sync => "sync",
        }
    }

    /// How it calls itself.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sqlx => "sqlx",
            Self::Diesel => "Diesel",
            Self::Sync => "postgres",
        }
    }

    /// Is a worker, until nothing is left to do or the parent ends.
    pub(crate) fn work(self, node: Node) -> Result<()> {
        end_with_parent();
        let url = std::env::var(URL).map_err(|_| format!("{URL} is not set"))?;
        let url = named(&url, node.name());
        match self {
            Self::Sqlx => sqlx::work(&url, node),
            Self::Diesel => diesel::work(&url, node),
            Self::Sync => sync::work(&url, node),
        }
    }
}

/// How a worker's sessions are called in `pg_stat_activity`.
pub(crate) fn application(node: &str) -> String {
    format!("fleet {node}")
}

/// The URL with the name for the sessions, which every library reads from there.
fn named(url: &str, node: &str) -> String {
    let sign = if url.contains('?') { '&' } else { '?' };
    let name = application(node).replace(' ', "%20");
    format!("{url}{sign}application_name={name}")
}

fn end_with_parent() {
    // A stopped process does not read, but it can be killed.
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        // Where that fails, the pipe is left.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
    thread::spawn(|| {
        // The parent never writes: this returns when it has ended.
        drop(std::io::stdin().read(&mut [0]));
        std::process::exit(0);
    });
}
