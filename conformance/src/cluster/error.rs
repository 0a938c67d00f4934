//! What can go wrong with a throw-away cluster.

use std::io;
use std::path::PathBuf;

/// Why a cluster could not be found, started, stopped or asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// No `PostgreSQL` server is installed where one is usually found.
    #[error(
        "the tests need a PostgreSQL server (version 13 or newer) and found none: install one \
         (`apt-get install postgresql` on Debian and Ubuntu, `brew install postgresql` on macOS), \
         or set LOCKAPI_PG_BIN to the directory that holds `initdb` and `postgres`, \
         or set DATABASE_URL to a running server"
    )]
    NoServer,

    /// `LOCKAPI_PG_BIN` names a directory without a server.
    #[error(
        "LOCKAPI_PG_BIN is set to {}, but that directory does not hold the programs of a \
         PostgreSQL server (`initdb`, `postgres` and `pg_ctl`)",
        .0.display()
    )]
    NoServerIn(PathBuf),

    /// There is a server, but no client.
    #[error(
        "the tests need `psql` and `pg_isready`, and found them neither beside the server in {}, \
         nor where they are usually installed: install a client (`apt-get install \
         postgresql-client` on Debian and Ubuntu)",
        .0.display()
    )]
    NoClient(PathBuf),

    /// The server found is older than the oldest supported version.
    #[error(
        "the tests need PostgreSQL 13 or newer, but {} holds version `{version}`: install a newer \
         one, or set LOCKAPI_PG_BIN or DATABASE_URL",
        .bin_dir.display()
    )]
    TooOld {
        /// The directory of the server's programs.
        bin_dir: PathBuf,
        /// The version it reports.
        version: String,
    },

    /// Root may not run a server, and there is no other user to run it as.
    #[error(
        "PostgreSQL does not run as root, and there is neither a user `postgres` nor a user `nobody`"
    )]
    NoServerUser,

    /// The clock of a server cannot be set.
    #[error(
        "a server whose clock can be set needs libfaketime: install it (`apt-get install faketime` \
         on Debian and Ubuntu)"
    )]
    NoClock,

    /// The operating system refused something.
    #[error("{action}: {source}")]
    Io {
        /// What was tried.
        action: String,
        /// The refusal.
        source: io::Error,
    },

    /// One of the `PostgreSQL` programs failed.
    #[error("{tool} failed: {output}")]
    Tool {
        /// The program's name.
        tool: String,
        /// What it wrote.
        output: String,
    },

    /// The server did not start.
    #[error("the PostgreSQL server did not start: {output}\nlast lines of its log:\n{log}")]
    Start {
        /// What `pg_ctl` wrote.
        output: String,
        /// The last lines of the server's log.
        log: String,
    },

    /// The directory for the clusters belongs to somebody else.
    #[error("{} exists, but is not a directory of this user", .0.display())]
    ForeignDirectory(PathBuf),

    /// The process that removes the cluster in the end did not come up.
    #[error("the watchdog of the cluster in {} did not start", .0.display())]
    NoWatchdog(PathBuf),

    /// The cluster is the server of `DATABASE_URL`, of which only the URL is known.
    #[error("the cluster is the server of DATABASE_URL: it has no known {0}")]
    Foreign(&'static str),
}

impl ClusterError {
    /// Makes a converter that adds what was tried to an error of the operating system.
    pub(super) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }
}
