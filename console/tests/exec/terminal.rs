//! `lockapi exec` at a terminal, which `script` of util-linux makes.

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;

use crate::common::{Database, Ran, Screen};
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial(
            "a_command_reads_from_the_terminal",
            a_command_reads_from_the_terminal,
        ),
        trial(
            "the_terminal_interrupts_the_command",
            the_terminal_interrupts_the_command,
        ),
        trial(
            "a_script_has_its_terminal_back",
            a_script_has_its_terminal_back,
        ),
        trial(
            "a_pipeline_keeps_its_terminal",
            a_pipeline_keeps_its_terminal,
        ),
        trial(
            "a_command_is_stopped_and_goes_on",
            a_command_is_stopped_and_goes_on,
        ),
    ]
}

/// Runs a script at a terminal, where somebody types each time something is shown.
fn at_terminal(database: &Database, script: &str, steps: &[(&str, &str)]) -> Ran {
    let mut command = Command::new("script");
    command.args(["-q", "-e", "-c", script, "/dev/null"]);
    command.env("DATABASE_URL", database.url());
    command.env("LOCKAPI", env!("CARGO_BIN_EXE_lockapi"));
    command
        .env("SHELL", "/bin/sh")
        .env("TERM", "dumb")
        .env("PS1", "PROMPT> ");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("script, of util-linux");
    let keys = OwnedFd::from(child.stdin.take().expect("its input"));
    let output = OwnedFd::from(child.stdout.take().expect("its output"));
    let mut screen = Screen::new(child, keys.into(), output.into());
    for (shown, typed) in steps {
        screen.shows(shown);
        // What is shown may come just before whoever shows it reads.
        std::thread::sleep(Duration::from_millis(300));
        screen.types(typed);
    }
    let (status, out) = screen.ends();
    Ran {
        status: status.code().unwrap_or(-1),
        out,
        err: String::new(),
    }
}

fn a_command_reads_from_the_terminal() {
    let database = Database::new();
    let script = "$LOCKAPI exec --lease t -- sh -c 'echo READY; read line </dev/tty; echo got:$line; exit 6'";
    let ran = at_terminal(&database, script, &[("READY", "hello\n")]);
    ran.exits(6).shows("got:hello");
}

fn the_terminal_interrupts_the_command() {
    let database = Database::new();
    let script = "$LOCKAPI exec --lease t -- sh -c 'trap \"echo interrupted; exit 8\" INT; echo READY; while :; do sleep 0.05; done'";
    let ran = at_terminal(&database, script, &[("READY", "\x03")]);
    ran.exits(8).shows("interrupted");
}

/// It was the command's meanwhile.
fn a_script_has_its_terminal_back() {
    let database = Database::new();
    let script = "$LOCKAPI exec --lease t -- sh -c 'exit 0'; echo READY; read line </dev/tty; echo got:$line";
    let ran = at_terminal(&database, script, &[("READY", "after\n")]);
    ran.exits(0).shows("got:after");
}

/// What reads from the terminal there is not the command, until it does.
fn a_pipeline_keeps_its_terminal() {
    let database = Database::new();
    let script = "$LOCKAPI exec --lease t -- sh -c 'echo ready; read line; echo \"got $line\"' | tr a-z A-Z; echo status $?";
    let ran = at_terminal(&database, script, &[("READY", "hello\n")]);
    ran.exits(0).shows("GOT HELLO");
}

/// In an interactive shell, as a job of it. The command is one process: a shell that waits for a child of `vfork`, which
/// is stopped before it calls `exec`, can neither stop nor be interrupted.
fn a_command_is_stopped_and_goes_on() {
    let database = Database::new();
    let exec = "$LOCKAPI exec --lease t --ttl 1h -- sh -c 'echo READY; exec sleep 600'\n";
    let steps = [
        ("PROMPT> ", exec),
        ("READY\r\n", "\x1a"),
        ("Stopped", "fg\n"),
        ("exec --lease", "\x03"),
        ("PROMPT> ", "echo status $?\n"),
        ("status 130", "exit\n"),
    ];
    at_terminal(&database, "bash --norc --noediting -i", &steps);
}
