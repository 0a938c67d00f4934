//! The terminal, which one process group has at a time.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};

use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// A group in the background that gives the terminal to another is stopped unless this is blocked.
///
/// # Errors
/// Those of the system.
pub(super) fn allow_in_background() -> io::Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTTOU);
    signals.thread_block().map_err(io::Error::from)
}

/// Whether this process has the terminal, and nobody else in a pipeline is likely to want it.
pub(super) fn is_for_the_command() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal() && is_ours()
}

/// Whether the terminal is that of this process group.
pub(super) fn is_ours() -> bool {
    controlling().is_some_and(|terminal| tcgetpgrp(&terminal) == Ok(getpgrp()))
}

/// Gives the terminal to a process group, if there is one. Whoever calls it has
/// [allowed it](allow_in_background).
pub(super) fn give(group: Pid) {
    if let Some(terminal) = controlling() {
        // The group may have ended, and then its shell takes the terminal.
        let _given = tcsetpgrp(&terminal, group);
    }
}

/// Takes it back from a process group that has it.
pub(super) fn take_back(from: Pid, to: Pid) {
    if controlling().is_some_and(|terminal| tcgetpgrp(&terminal) == Ok(from)) {
        give(to);
    }
}

fn controlling() -> Option<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/tty")
        .ok()
}
