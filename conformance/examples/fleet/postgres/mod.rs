//! The fleet on `PostgreSQL`: every worker is a process.

use std::io::Read;
use std::sync::Arc;
use std::thread;

use conformance::cluster::{Cluster, ClusterError};
use lockapi::BackendExt;
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use crate::Result;
use crate::args::{Safety, Settings};
use crate::conduct::{self, Verdict};
use crate::view::Screen;
use crate::worker::Worker;

mod processes;
mod tables;

use processes::Processes;
use tables::Tables;

/// The connections that a worker's own transactions use.
const CONNECTIONS: u32 = 4;
/// With those of the backend, the most that a worker opens.
const CONNECTIONS_OF_WORKER: usize = 8;

/// How a worker is told where the database is: arguments are visible to all users of a machine.
const URL: &str = "DATABASE_URL";

/// Runs the fleet.
pub(crate) fn run(settings: &Settings) -> Result<Verdict> {
    let screen = Screen::new();
    let server = Server::get(settings.workers, &screen)?;
    // One thread starts the workers, and lives until they have ended.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let verdict = runtime.block_on(conduct(settings, server.url(), &screen));
    drop(server);
    verdict
}

async fn conduct(settings: &Settings, url: &str, screen: &Screen) -> Result<Verdict> {
    let pool = pool(url, "fleet")?;
    let backend = backend_sqlx::connect(&pool).await?;
    backend.migrate().await?;
    let only = backend.mutex("fleet/demo")?.try_lock().await?;
    let only = only.ok_or("another fleet is running on this database")?;
    let version = tables::prepare(&pool).await?;
    let tables = Arc::new(Tables::new(pool.clone()));
    let fleet = Processes::new(url, pool, settings.safety);
    let subject = format!("processes and a PostgreSQL {version} server");
    let verdict = conduct::conduct(settings, &*tables, &fleet, screen, &subject).await;
    drop(fleet);
    only.unlock().await?;
    verdict
}

/// Is a worker, until nothing is left to do or the parent ends.
pub(crate) fn work(node: &str, safety: Safety) -> Result<()> {
    end_with_parent();
    let url = std::env::var(URL).map_err(|_| format!("{URL} is not set"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let pool = pool(&url, &application(node))?;
        let backend = backend_sqlx::connect(&pool).await?;
        let tables = Arc::new(Tables::new(pool));
        Worker::new(node, backend, tables, safety).work().await;
        Ok(())
    })
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

/// How a worker's sessions are called in `pg_stat_activity`.
fn application(node: &str) -> String {
    format!("fleet {node}")
}

fn pool(url: &str, application: &str) -> Result<PgPool> {
    // The parser's error may quote the URL, which may hold a password.
    let options: PgConnectOptions = url
        .parse()
        .map_err(|_| format!("{URL} is not understood"))?;
    Ok(PgPoolOptions::new()
        .max_connections(CONNECTIONS)
        .acquire_timeout(std::time::Duration::from_secs(5))
        .connect_lazy_with(options.application_name(application)))
}

/// The server to use.
enum Server {
    Private(Cluster),
    Given(&'static Cluster),
}

impl Server {
    fn get(workers: usize, screen: &Screen) -> Result<Self> {
        if std::env::var_os(URL).is_some_and(|url| !url.is_empty()) {
            return Ok(Self::Given(Cluster::shared()?));
        }
        screen.line("Starting a private PostgreSQL server ...")?;
        let connections = (workers * CONNECTIONS_OF_WORKER + 40).to_string();
        match Cluster::private(&[("max_connections", &connections)]) {
            Ok(cluster) => Ok(Self::Private(cluster)),
            Err(ClusterError::NoServer) => Err(
                "no PostgreSQL server (version 13 or newer) is installed. `make demo` installs one \
                 on Debian and Ubuntu; LOCKAPI_PG_BIN names the directory of its programs, \
                 DATABASE_URL a running server; `--backend memory` does without"
                    .into(),
            ),
            Err(error) => Err(error.into()),
        }
    }

    fn url(&self) -> &str {
        match self {
            Self::Private(cluster) => cluster.url(),
            Self::Given(cluster) => cluster.url(),
        }
    }
}
