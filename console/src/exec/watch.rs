//! The watcher of a command: a process of its own between `lockapi exec` and the command.
//!
//! It knows until when the hold is sure, and ends the command in time. So the command ends also when `lockapi exec` is
//! killed, which closes the connection between them, or stopped, which leaves the watcher with the last it heard. It
//! adopts what the command leaves behind, and when it is killed itself, the system kills the command and
//! `lockapi exec`, which adopts the rest, ends that.

use std::ffi::OsString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, wait};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use super::clock::Time;
use super::message::{Cause, How, Order, Report};
use super::signals::Signals;
use super::{PROGRAM, terminal, tree};
use crate::exit::Exit;

/// The machine may have slept: its clock is looked at so often at least.
const LOOK: Duration = Duration::from_secs(1);
/// So many changes of children are looked at before the clock is.
const AT_ONCE: u32 = 100;
/// `lockapi exec` may be stopped, and hear nothing: the watcher does not wait for it.
const HEARING: Duration = Duration::from_millis(20);
/// After so long a process that should have been killed cannot be.
const PATIENCE: Duration = Duration::from_secs(10);

/// Watches over a command; standard input is the connection to `lockapi exec`.
#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// Until when the hold is sure; the command is never ended for its sake where there is none.
    #[arg(long)]
    until: Option<Time>,
    /// How long before that the command is killed, in microseconds.
    #[arg(long)]
    margin: u64,
    /// How long it has after SIGTERM, in microseconds.
    #[arg(long)]
    grace: u64,
    /// The hold ends with `lockapi exec`.
    #[arg(long)]
    at_once: bool,
    /// The process group that the terminal comes from.
    #[arg(long)]
    terminal: Option<i32>,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

impl Watch {
    pub(crate) async fn run(&self) -> Exit {
        if self.watch().await.is_ok() {
            return Exit::Success;
        }
        // `lockapi exec` tells that it has lost the watcher.
        tree::end(PATIENCE);
        Exit::Supervisor
    }

    async fn watch(&self) -> io::Result<()> {
        let _named = rustix::thread::set_name(c"lockapi");
        terminal::allow_in_background()?;
        adopt_orphans()?;
        let connection = StdStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let input = receive(&connection)?;
        connection.set_nonblocking(true)?;
        let (orders, reports) = UnixStream::from_std(connection)?.into_split();
        let mut ended = signal(SignalKind::child())?;
        // Who stops a service sends SIGTERM to all of its processes: `lockapi exec` passes it on, and the command has its
        // time to end in. What is caught here is not ignored by the command.
        let _caught = Signals::new()?;
        let command = self.start(input)?;
        let mut watcher = Watcher {
            timing: Timing {
                until: self.until,
                margin: Duration::from_micros(self.margin),
                grace: Duration::from_micros(self.grace),
                ..Timing::default()
            },
            command,
            how: None,
            orders: BufReader::new(orders).lines(),
            reports,
            is_alone: false,
            killed_since: None,
        };
        watcher.report(Report::Started(command.as_raw_pid())).await;
        loop {
            watcher.hear(self).await;
            if watcher.reap().await {
                return watcher.finish(self).await;
            }
            let pause = match watcher.act().await {
                Some(pause) => pause.min(LOOK),
                None => return Ok(()),
            };
            tokio::select! {
                () = watcher.wait_for_order(self) => {}
                _ = ended.recv() => {}
                () = sleep(pause) => {}
            }
        }
    }

    fn start(&self, input: OwnedFd) -> io::Result<Pid> {
        let mut start = Command::new(PROGRAM);
        start.arg0("lockapi").arg("start");
        if let Some(until) = self.until {
            start.args(["--with", &getpid().to_string()]);
            let before = until.minus(Duration::from_micros(self.margin));
            start.args(["--before", &before.to_string()]);
        }
        if self.terminal.is_some() {
            start.arg("--terminal");
        }
        start.arg("--").args(&self.command);
        let started = start.stdin(Stdio::from(input)).process_group(0).spawn()?;
        Ok(Pid::from_child(&started))
    }
}

struct Watcher {
    timing: Timing,
    /// The first process of the command, and the number of its group.
    command: Pid,
    /// How that ended, once it has been waited for.
    how: Option<How>,
    orders: Lines<BufReader<OwnedReadHalf>>,
    reports: OwnedWriteHalf,
    /// Whether `lockapi exec` has gone.
    is_alone: bool,
    killed_since: Option<Time>,
}

impl Watcher {
    /// Hears all that has been said: of several deadlines the last counts.
    async fn hear(&mut self, watch: &Watch) {
        while !self.is_alone {
            tokio::select! {
                biased;
                line = self.orders.next_line() => self.obey(line, watch),
                () = std::future::ready(()) => return,
            }
        }
    }

    async fn wait_for_order(&mut self, watch: &Watch) {
        if self.is_alone {
            return std::future::pending().await;
        }
        let line = self.orders.next_line().await;
        self.obey(line, watch);
    }

    fn obey(&mut self, line: io::Result<Option<String>>, watch: &Watch) {
        let order = line.ok().flatten().and_then(|line| line.parse().ok());
        match order {
            Some(Order::Until(time)) if watch.until.is_some() => {
                self.timing.extend(Time::now(), time);
            }
            Some(Order::Until(_)) => {}
            Some(Order::Stop) => self.timing.stop = true,
            Some(Order::Kill) => self.timing.kill = true,
            Some(Order::Signal(number)) => {
                if let Some(signal) = Signal::from_named_raw(number)
                    && self.how.is_none()
                {
                    // What has ended needs no signal.
                    let _sent = rustix::process::kill_process_group(self.command, signal);
                }
            }
            // It has gone, or talks nonsense. Without a deadline the command goes on.
            None => {
                self.is_alone = true;
                self.timing.stop |= watch.until.is_some();
                self.timing.kill |= watch.until.is_some() && watch.at_once;
            }
        }
    }

    /// Waits for what has ended; answers whether nothing is left. A command that stops itself again and again does not
    /// keep the watcher from the clock.
    async fn reap(&mut self) -> bool {
        let mut stopped = None;
        let mut left = AT_ONCE;
        let is_over = loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) if pid == self.command => {
                    stopped = stopped.or(status.stopping_signal());
                    self.how = self.how.or(how(status));
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => break false,
                Err(_) => break true,
            }
            left -= 1;
            if left == 0 {
                break false;
            }
        };
        if let Some(signal) = stopped {
            self.report(Report::Stopped(signal)).await;
        }
        is_over
    }

    /// Ends the command where it is time to; answers how long to wait for the next event, or nothing where it cannot be
    /// ended.
    async fn act(&mut self) -> Option<Duration> {
        let now = Time::now();
        self.timing.leftover = self.how.is_some();
        match self.timing.step(now) {
            Step::Wait(pause) => Some(pause),
            Step::Terminate => {
                self.timing.asked = Some(now);
                tree::signal(self.group(), Signal::TERM);
                // What is stopped could not end.
                tree::signal(self.group(), Signal::CONT);
                Some(Duration::ZERO)
            }
            Step::Kill => {
                let refused = tree::signal(self.group(), Signal::KILL);
                let since = *self.killed_since.get_or_insert(now);
                if since.until(now) > PATIENCE {
                    let pid = refused.unwrap_or(self.command);
                    self.report(Report::Stuck(pid.as_raw_pid())).await;
                    return None;
                }
                Some(tree::PAUSE)
            }
        }
    }

    /// Its group, while the number cannot be that of another.
    fn group(&self) -> Option<Pid> {
        self.how.is_none().then_some(self.command)
    }

    async fn finish(&mut self, watch: &Watch) -> io::Result<()> {
        if let Some(from) = watch.terminal.and_then(Pid::from_raw) {
            terminal::take_back(self.command, from);
        }
        let cause = self.timing.cause;
        let how = self.how.unwrap_or(How::Signalled(Signal::KILL.as_raw()));
        self.report(Report::Ended(cause, how)).await;
        Ok(())
    }

    async fn report(&mut self, report: Report) {
        let line = format!("{report}\n");
        // Nobody hears it when `lockapi exec` has gone.
        let _heard = timeout(HEARING, self.reports.write_all(line.as_bytes())).await;
    }
}

fn how(status: WaitStatus) -> Option<How> {
    let exited = status.exit_status().map(How::Exited);
    exited.or_else(|| status.terminating_signal().map(How::Signalled))
}

/// When a command is ended: decides, and does nothing.
#[derive(Debug)]
struct Timing {
    until: Option<Time>,
    margin: Duration,
    grace: Duration,
    /// It was told to end.
    stop: bool,
    /// It is to be killed.
    kill: bool,
    /// The command itself has ended, and others of it have not.
    leftover: bool,
    /// When it got SIGTERM.
    asked: Option<Time>,
    cause: Cause,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            until: None,
            margin: Duration::ZERO,
            grace: Duration::ZERO,
            stop: false,
            kill: false,
            leftover: false,
            asked: None,
            cause: Cause::Itself,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Wait(Duration),
    Terminate,
    Kill,
}

impl Timing {
    /// When the command is killed.
    fn last(&self) -> Option<Time> {
        self.until.map(|until| until.minus(self.margin))
    }

    /// A renewal moves the end. One that is heard after the end comes too late: `lockapi exec` may not know yet that the machine
    /// slept.
    fn extend(&mut self, now: Time, until: Time) {
        if self.last().is_none_or(|last| now < last) {
            self.until = Some(until);
        }
    }

    fn step(&mut self, now: Time) -> Step {
        let last = self.last();
        let is_over = last.is_some_and(|last| now >= last);
        if self.kill || is_over {
            self.kill = true;
            if !self.leftover {
                self.cause = Cause::Deadline;
            }
            return Step::Kill;
        }
        let left = last.map_or(Duration::MAX, |last| now.until(last));
        if let Some(asked) = self.asked {
            let grace = now.until(asked.plus(self.grace));
            if grace.is_zero() {
                self.kill = true;
                return Step::Kill;
            }
            return Step::Wait(grace.min(left));
        }
        if left <= self.grace || self.stop {
            if !self.leftover {
                self.cause = Cause::Deadline;
            }
            return Step::Terminate;
        }
        if self.leftover {
            return Step::Terminate;
        }
        Step::Wait(left.saturating_sub(self.grace))
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn adopt_orphans() -> io::Result<()> {
    rustix::process::set_child_subreaper(Some(getpid())).map_err(io::Error::from)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[allow(clippy::unnecessary_wraps, reason = "elsewhere it can fail")]
pub(super) fn adopt_orphans() -> io::Result<()> {
    Ok(())
}

/// The standard input of the command, which `lockapi exec` passes on.
fn receive(connection: &StdStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut buffer = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let into = &mut [io::IoSliceMut::new(&mut byte)];
    recvmsg(connection, into, &mut buffer, RecvFlags::CMSG_CLOEXEC)?;
    for message in buffer.drain() {
        if let RecvAncillaryMessage::ScmRights(mut passed) = message
            && let Some(input) = passed.next()
        {
            return Ok(input);
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn held() -> Timing {
        Timing {
            until: Some(Time::at(30 * SECOND)),
            margin: 2 * SECOND,
            grace: 5 * SECOND,
            ..Timing::default()
        }
    }

    fn at(seconds: u32) -> Time {
        Time::at(seconds * SECOND)
    }

    #[test]
    fn it_is_asked_to_end_and_killed_before_the_hold_ends() {
        let mut timing = held();
        assert_eq!(timing.step(at(0)), Step::Wait(23 * SECOND));
        assert_eq!(timing.step(at(23)), Step::Terminate);
        timing.asked = Some(at(23));
        assert_eq!(timing.step(at(24)), Step::Wait(4 * SECOND));
        assert_eq!(timing.step(at(28)), Step::Kill);
        assert_eq!(timing.cause, Cause::Deadline);
    }

    #[test]
    fn a_renewal_moves_the_end() {
        let mut timing = held();
        timing.extend(at(27), at(60));
        assert_eq!(timing.step(at(28)), Step::Wait(25 * SECOND));
        assert_eq!(timing.cause, Cause::Itself);
    }

    #[test]
    fn what_is_renewed_after_its_end_is_over() {
        let mut timing = held();
        timing.extend(at(28), at(60));
        assert_eq!(timing.step(at(28)), Step::Kill);
        assert_eq!(timing.cause, Cause::Deadline);
    }

    #[test]
    fn who_looks_too_late_kills_at_once() {
        let mut timing = held();
        assert_eq!(timing.step(at(100)), Step::Kill);
        // What is dying is not saved by a renewal.
        timing.until = Some(at(200));
        assert_eq!(timing.step(at(101)), Step::Kill);
    }

    #[test]
    fn what_a_command_leaves_is_ended_as_well() {
        let mut timing = held();
        timing.leftover = true;
        assert_eq!(timing.step(at(1)), Step::Terminate);
        timing.asked = Some(at(1));
        assert_eq!(timing.step(at(6)), Step::Kill);
        assert_eq!(timing.cause, Cause::Itself);
    }

    #[test]
    fn without_a_deadline_it_goes_on() {
        let mut timing = Timing {
            until: None,
            ..held()
        };
        assert!(matches!(timing.step(at(1_000_000)), Step::Wait(_)));
        timing.stop = true;
        assert_eq!(timing.step(at(1_000_001)), Step::Terminate);
    }
}
