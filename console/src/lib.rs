//! The operator's command of [`lockapi`], for people who write no Rust: a crontab, a shell script, a person at
//! night with a stuck job.
//!
//! ```text
//! lockapi exec --lease nightly --ttl 30s --skip -- ./backup.sh
//! lockapi lock list
//! lockapi queue show mails
//! lockapi doctor
//! ```
//!
//! It works on the tables and locks that programs use through `lockapi-sqlx`, `lockapi-diesel`,
//! `lockapi-postgres` and the other backends, so that a shell script and a service exclude each other.
//!
//! # The database
//! `--url`, or else `DATABASE_URL`, or else `PGHOST`, `PGPORT`, `PGUSER`, `PGDATABASE`, `PGPASSWORD`, `PGSSLMODE`,
//! `PGSSLROOTCERT`, `PGSSLCERT`, `PGSSLKEY`, `PGAPPNAME` and `PGOPTIONS`, which also complete a URL that does not say
//! all. Passwords come from the password file as with psql (`PGPASSFILE`, `~/.pgpass`). Of several hosts,
//! `postgres://one,two/app`, the primary is taken. TLS is built in.
//!
//! A password in `--url` can be seen by everybody on the machine: use `DATABASE_URL` or the password file.
//!
//! # Running commands
//! `lockapi exec` holds a lease, a mutex, a permit or the leadership while a command runs:
//!
//! ```text
//! lockapi exec     holds it, and tells the watcher until when that is sure
//!   lockapi watch    ends the command in time; adopts what it leaves behind
//!     the command      a process group of its own, which the system kills when the watcher dies
//! ```
//!
//! So the command, with all that it has started, ends before what it runs under can be given to others: when the
//! database cannot be reached, and when any one of these processes is killed or stopped. It needs Linux; elsewhere only
//! the process group of the command is ended. Not ended is what runs as another user, and what other programs
//! run on the command's behalf. A mutex is lost when its session ends, and the command about a second later.
//!
//! # Output
//! Tables for people; with `--json` one JSON value on a single line for programs. Times are RFC 3339 in UTC,
//! durations are seconds, and fencing tokens and ids are texts, because many readers of JSON round large numbers.
//! What went wrong is told on standard error, in both cases.
//!
//! # Exit status
//! The statuses are those of [`Exit`] and do not change between versions.

mod action;
mod arguments;
mod audit;
mod common;
mod connect;
mod doctor;
mod documents;
#[cfg(unix)]
mod exec;
mod exit;
mod failure;
mod id;
mod lease;
mod limit;
mod lock;
mod migrate;
mod output;
mod present;
mod queue;
mod schedule;
mod top;
mod values;
mod watch;
#[cfg(feature = "web")]
pub mod web;

pub use exit::Exit;
use failure::{Failure, Result};

use std::process::ExitCode;

use clap::Parser;
use tokio::runtime::Builder;

use arguments::Arguments;

/// Does what the arguments of this process say; the whole program.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Nobody may be there to read it.
            let _printed = error.print();
            let failed = error.use_stderr();
            return if failed { Exit::Usage } else { Exit::Success }.into();
        }
    };
    match perform(arguments) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            failure.tell();
            failure.exit().into()
        }
    }
}

/// On one thread: a command waits for a few answers, and is there at once.
fn perform(arguments: Arguments) -> Result<Exit> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Failure::new(Exit::Failed, format!("the program cannot start: {error}"))
    })?;
    runtime.block_on(arguments.command.run(&arguments.global))
}
