//! The last step before the command: a process that becomes it.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;
use rustix::process::getpgrp;

use super::clock::Time;
use super::terminal;
use crate::exit::Exit;

/// Becomes a command that ends with the process that started it.
#[derive(Debug, Args)]
pub(crate) struct Start {
    /// The process that it ends with.
    #[arg(long)]
    with: Option<i32>,
    /// Not after this time.
    #[arg(long)]
    before: Option<Time>,
    /// Takes the terminal.
    #[arg(long)]
    terminal: bool,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

impl Start {
    /// Returns only where it cannot become the command.
    pub(crate) fn run(&self) -> Exit {
        let Some((program, arguments)) = self.command.split_first() else {
            return Exit::Usage;
        };
        if !self.tie() {
            return Exit::Supervisor;
        }
        if self.terminal && terminal::allow_in_background().is_ok() {
            terminal::give(getpgrp());
        }
        if self.before.is_some_and(|before| Time::now() >= before) {
            let told = "lockapi: the hold had ended before the command could begin; it was not run";
            let _told = writeln!(io::stderr(), "{told}");
            return Exit::Supervisor;
        }
        // It resets the signals that were blocked.
        let error = Command::new(program).args(arguments).exec();
        let _told = writeln!(io::stderr(), "lockapi: {}: {error}", program.display());
        match error.kind() {
            ErrorKind::NotFound => Exit::NotFound,
            _ => Exit::NotExecutable,
        }
    }

    /// The system kills this process when the one that it ends with has gone, whatever that was killed by. Answers
    /// whether that one is there.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn tie(&self) -> bool {
        use rustix::process::{Signal, getppid, set_parent_process_death_signal};
        let Some(with) = self.with else { return true };
        let set = set_parent_process_death_signal(Some(Signal::KILL));
        // It may have ended before.
        set.is_ok() && getppid().is_some_and(|parent| parent.as_raw_pid() == with)
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn tie(&self) -> bool {
        let parent = rustix::process::getppid();
        let is_parent = |with| parent.is_some_and(|parent| parent.as_raw_pid() == with);
        self.with.is_none_or(is_parent)
    }
}
