//! `lockapi exec` while its command runs: it keeps the watcher informed, and passes signals on.

use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, getpgrp, kill_current_process_group};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{sleep, timeout};

use super::clock::Time;
use super::hold::Hold;
use super::message::{Cause, How, Order, Report};
use super::signals::Signals;
use super::{PROGRAM, terminal, tree, watch};

/// After so long a process that should have been killed cannot be.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a watcher may take to read an order, and to kill the command.
const RESPONSE: Duration = Duration::from_secs(1);

/// How a command is watched over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) ttl: Duration,
    /// How long before the hold ends the command is killed.
    pub(super) margin: Duration,
    /// How long it has after SIGTERM.
    pub(super) grace: Duration,
    /// It goes on when the hold is lost.
    pub(super) keep: bool,
}

/// What became of a command.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    /// It ended like this while it was sure that the hold lasted, or was to go on anyway.
    Ended(How),
    /// It was ended because the hold could not be relied upon any more.
    Lost,
    /// The watcher was lost, and the command ended.
    Unwatched,
    /// This process of it cannot be ended.
    Stuck(i32),
}

/// An order does not get through: the watcher has read nothing for minutes, and is stopped.
struct Unheard;

/// A command that runs.
pub(super) struct Supervised<'a> {
    hold: &'a Hold,
    settings: Settings,
    watcher: Child,
    reports: Lines<BufReader<OwnedReadHalf>>,
    orders: OwnedWriteHalf,
    /// The process group of the command.
    group: Option<Pid>,
    stopped: bool,
    is_lost: bool,
}

impl<'a> Supervised<'a> {
    /// Starts the watcher, which starts the command.
    pub(super) fn start(
        hold: &'a Hold,
        settings: Settings,
        command: &[OsString],
        environment: &[(&str, String)],
    ) -> io::Result<Self> {
        terminal::allow_in_background()?;
        watch::adopt_orphans()?;
        let (ours, theirs) = StdStream::pair()?;
        let micros = |time: Duration| time.as_micros().to_string();
        let mut watch = Command::new(PROGRAM);
        watch.arg0("lockapi").arg("watch");
        watch.args(["--margin", &micros(settings.margin)]);
        watch.args(["--grace", &micros(settings.grace)]);
        if !settings.keep {
            watch.args(["--until", &sure_until(hold, settings).to_string()]);
        }
        if matches!(hold, Hold::Mutex(_)) {
            watch.arg("--at-once");
        }
        if terminal::is_for_the_command() {
            watch.args(["--terminal", &getpgrp().to_string()]);
        }
        watch.arg("--").args(command);
        watch.envs(environment.iter().map(|(name, value)| (name, value)));
        watch.stdin(Stdio::from(OwnedFd::from(theirs)));
        // Signals to the group of this process are not for the watcher.
        let watcher = watch.process_group(0).spawn()?;
        send(&ours, io::stdin().as_fd())?;
        ours.set_nonblocking(true)?;
        let (reports, orders) = UnixStream::from_std(ours)?.into_split();
        Ok(Self {
            hold,
            settings,
            watcher,
            reports: BufReader::new(reports).lines(),
            orders,
            group: None,
            stopped: false,
            is_lost: false,
        })
    }

    /// Returns when nothing is left of the command.
    pub(super) async fn outcome(mut self, signals: &mut Signals) -> Outcome {
        let outcome = self.run(signals).await;
        // It has nothing to do any more, or does it no longer.
        let _killed = self.watcher.kill();
        let outcome = match outcome {
            Some(outcome) => {
                let _status = self.watcher.wait();
                outcome
            }
            // What it watched over is left to this process.
            None if !tree::end(PATIENCE) => {
                let group = self.group.map(Pid::as_raw_pid);
                Outcome::Stuck(group.unwrap_or_default())
            }
            None if self.is_lost => Outcome::Lost,
            None => Outcome::Unwatched,
        };
        if let Some(group) = self.group {
            terminal::take_back(group, getpgrp());
        }
        outcome
    }

    /// Nothing where the watcher has gone, or does not do what it is there for.
    async fn run(&mut self, signals: &mut Signals) -> Option<Outcome> {
        let beat = self.settings.ttl.div_f64(10.0).min(Duration::from_secs(1));
        let mut until = sure_until(self.hold, self.settings);
        loop {
            let backstop = until.minus(self.settings.margin / 2);
            let left = Time::now().until(backstop);
            if left.is_zero() && !self.settings.keep {
                self.is_lost = true;
                return None;
            }
            let pause = if self.settings.keep {
                beat
            } else {
                beat.min(left)
            };
            let hold = self.hold;
            let is_lost = self.is_lost;
            tokio::select! {
                biased;
                line = self.reports.next_line() => {
                    let report = line.ok().flatten()?.parse().ok()?;
                    if let Some(outcome) = self.hear(report).await.ok()? {
                        return Some(outcome);
                    }
                }
                () = hold.lost(), if !is_lost => {
                    self.is_lost = true;
                    if self.settings.keep {
                        eprintln_lost("the command goes on, as --on-lost keep says");
                    } else {
                        let soon = Time::now().plus(self.settings.margin / 2 + RESPONSE);
                        until = until.min(soon);
                        self.tell(Order::Kill).await.ok()?;
                    }
                }
                signal = signals.next() => self.pass_on(signal).await.ok()?,
                () = sleep(pause) => {}
            }
            // While the machine slept the library's clock stood still: what is over is not renewed.
            if !self.is_lost && !self.settings.keep && Time::now() < backstop {
                until = sure_until(self.hold, self.settings);
                self.tell(Order::Until(until)).await.ok()?;
            }
        }
    }

    async fn hear(&mut self, report: Report) -> Result<Option<Outcome>, Unheard> {
        match report {
            Report::Started(pid) => self.group = Pid::from_raw(pid),
            Report::Stopped(signal) => self.stopped(signal).await?,
            Report::Ended(Cause::Deadline, _) if !self.settings.keep => {
                return Ok(Some(Outcome::Lost));
            }
            Report::Ended(_, how) => return Ok(Some(Outcome::Ended(how))),
            Report::Stuck(pid) => return Ok(Some(Outcome::Stuck(pid))),
        }
        Ok(None)
    }

    /// The command was stopped: from the terminal, or because it wants to use it.
    async fn stopped(&mut self, signal: i32) -> Result<(), Unheard> {
        let wants = [Signal::TTIN, Signal::TTOU].map(Signal::as_raw);
        if wants.contains(&signal) && terminal::is_ours() {
            return self.go_on().await;
        }
        if signal == Signal::TSTP.as_raw() {
            self.stopped = true;
            if let Some(group) = self.group {
                terminal::take_back(group, getpgrp());
            }
            // With the rest of its job, as if they were one process: the shell takes over. Meanwhile nothing is
            // renewed.
            let _stopped = kill_current_process_group(Signal::STOP);
        }
        Ok(())
    }

    async fn pass_on(&mut self, signal: Signal) -> Result<(), Unheard> {
        if signal == Signal::CONT && self.stopped {
            return self.go_on().await;
        }
        self.tell(Order::Signal(signal.as_raw())).await
    }

    async fn go_on(&mut self) -> Result<(), Unheard> {
        self.stopped = false;
        if let Some(group) = self.group
            && terminal::is_ours()
        {
            terminal::give(group);
        }
        self.tell(Order::Signal(Signal::CONT.as_raw())).await
    }

    async fn tell(&mut self, order: Order) -> Result<(), Unheard> {
        let order = format!("{order}\n");
        match timeout(RESPONSE, self.orders.write_all(order.as_bytes())).await {
            // That the watcher has gone is seen where its reports are read.
            Ok(_heard) => Ok(()),
            // The command goes on whatever happens.
            Err(_) if self.settings.keep => Ok(()),
            Err(_) => Err(Unheard),
        }
    }
}

fn eprintln_lost(what: &str) {
    use std::io::Write;
    let _told = writeln!(io::stderr(), "lockapi: the hold is lost; {what}");
}

/// The clock is read first: a time that passes in between is taken off.
fn sure_until(hold: &Hold, settings: Settings) -> Time {
    let now = Time::now();
    now.plus(hold.remaining(settings.ttl))
}

/// Passes the standard input of this process on to the watcher, whose own is the connection.
fn send(connection: &StdStream, input: impl AsFd) -> io::Result<()> {
    let inputs = [input.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut buffer = SendAncillaryBuffer::new(&mut space);
    if !buffer.push(SendAncillaryMessage::ScmRights(&inputs)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(
        connection,
        &[IoSlice::new(&[0])],
        &mut buffer,
        SendFlags::empty(),
    )?;
    Ok(())
}
