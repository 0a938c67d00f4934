//! The arguments. A command has its own in the module that performs it.

use clap::{Args, Parser, Subcommand};

use crate::audit::Audit;
use crate::connect::Place;
use crate::doctor::Doctor;
use crate::documents::{Completions, Manual};
#[cfg(unix)]
use crate::exec::{Exec, Start, Watch};
use crate::exit::Exit;
use crate::failure::Result;
use crate::id::Ids;
use crate::lease::Lease;
use crate::limit::Limit;
use crate::lock::Lock;
use crate::migrate::Migrate;
use crate::output::Output;
use crate::queue::Queue;
use crate::schedule::Schedule;
use crate::top::Top;
#[cfg(feature = "web")]
use crate::web::Web;

/// Locks, leases, queues and limits of a PostgreSQL database, from the command line
#[derive(Debug, Parser)]
#[command(name = "lockapi", version, max_term_width = 100)]
pub(crate) struct Arguments {
    /// What all commands have.
    #[command(flatten)]
    pub(crate) global: Global,

    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What all commands have.
#[derive(Clone, Debug, Args)]
pub(crate) struct Global {
    /// Which database.
    #[command(flatten)]
    pub(crate) place: Place,

    /// Print one JSON value instead of a table, or of nothing; not with `exec` and `top`
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl Global {
    /// Where results go.
    #[must_use]
    pub(crate) fn output(&self) -> Output {
        Output::new(self.json)
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[cfg(unix)]
    Exec(Box<Exec>),
    /// For `exec` itself.
    #[cfg(unix)]
    #[command(hide = true)]
    Watch(Watch),
    /// For `exec` itself.
    #[cfg(unix)]
    #[command(hide = true)]
    Start(Start),
    #[command(subcommand)]
    Lock(Lock),
    #[command(subcommand)]
    Lease(Lease),
    #[command(subcommand)]
    Limit(Limit),
    #[command(subcommand)]
    Queue(Box<Queue>),
    #[command(subcommand)]
    Schedule(Box<Schedule>),
    #[command(subcommand)]
    Id(Ids),
    Audit(Audit),
    #[command(subcommand)]
    Migrate(Migrate),
    Doctor(Doctor),
    Top(Top),
    #[cfg(feature = "web")]
    Web(Web),
    /// Print the completions of a shell
    Completions(Completions),
    /// Print a manual page, or write all of them
    Man(Manual),
}

impl Command {
    /// Does it.
    ///
    /// # Errors
    /// With the exit status that its kind has.
    pub(crate) async fn run(self, global: &Global) -> Result<Exit> {
        match self {
            #[cfg(unix)]
            Self::Exec(exec) => exec.run(global).await,
            #[cfg(unix)]
            Self::Watch(watch) => Ok(watch.run().await),
            #[cfg(unix)]
            Self::Start(start) => Ok(start.run()),
            Self::Lock(lock) => lock.run(global).await,
            Self::Lease(lease) => lease.run(global).await,
            Self::Limit(limit) => limit.run(global).await,
            Self::Queue(queue) => queue.run(global).await,
            Self::Schedule(schedule) => schedule.run(global).await,
            Self::Id(ids) => ids.run(global).await,
            Self::Audit(audit) => audit.run(global).await,
            Self::Migrate(migrate) => migrate.run(global).await,
            Self::Doctor(doctor) => doctor.run(global).await,
            Self::Top(top) => top.run(global).await,
            #[cfg(feature = "web")]
            Self::Web(web) => web.run(global).await,
            Self::Completions(completions) => completions.run(global.output()),
            Self::Man(manual) => manual.run(global.output()),
        }
    }
}
