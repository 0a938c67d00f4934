//! What `lockapi exec` and the watcher of its command say to each other: a line each.

use std::fmt;
use std::str::FromStr;

use super::clock::Time;
use crate::exit::Exit;

/// What the watcher is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The hold is sure until then.
    Until(Time),
    /// The command gets this signal.
    Signal(i32),
    /// The command is to end, with SIGTERM first.
    Stop,
    /// The command is killed at once.
    Kill,
}

/// What the watcher tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The command is about to begin, as this process and process group.
    Started(i32),
    /// The command was stopped by this signal.
    Stopped(i32),
    /// Nothing of the command is left.
    Ended(Cause, How),
    /// This process cannot be ended, because it runs as another user.
    Stuck(i32),
}

/// Why a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// By itself, or of a signal that somebody sent.
    Itself,
    /// It was told to: the hold was about to end, or had.
    Deadline,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// With this status.
    Exited(i32),
    /// By this signal.
    Signalled(i32),
}

impl How {
    pub(super) fn exit(self) -> Exit {
        match self {
            Self::Exited(status) => Exit::Other(u8::try_from(status).unwrap_or(u8::MAX)),
            Self::Signalled(signal) => Exit::signalled(signal),
        }
    }
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(status) => write!(f, "exited {status}"),
            Self::Signalled(signal) => write!(f, "signalled {signal}"),
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Until(time) => write!(f, "until {time}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Stop => f.write_str("stop"),
            Self::Kill => f.write_str("kill"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started(pid) => write!(f, "started {pid}"),
            Self::Stopped(signal) => write!(f, "stopped {signal}"),
            Self::Ended(Cause::Itself, how) => write!(f, "ended itself {how}"),
            Self::Ended(Cause::Deadline, how) => write!(f, "ended deadline {how}"),
            Self::Stuck(pid) => write!(f, "stuck {pid}"),
        }
    }
}

/// A line that is none of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotUnderstood;

impl FromStr for Order {
    type Err = NotUnderstood;

    fn from_str(line: &str) -> Result<Self, NotUnderstood> {
        match *line.split(' ').collect::<Vec<_>>() {
            ["until", time] => Ok(Self::Until(number(time)?)),
            ["signal", signal] => Ok(Self::Signal(number(signal)?)),
            ["stop"] => Ok(Self::Stop),
            ["kill"] => Ok(Self::Kill),
            _ => Err(NotUnderstood),
        }
    }
}

impl FromStr for Report {
    type Err = NotUnderstood;

    fn from_str(line: &str) -> Result<Self, NotUnderstood> {
        match *line.split(' ').collect::<Vec<_>>() {
            ["started", pid] => Ok(Self::Started(number(pid)?)),
            ["stopped", signal] => Ok(Self::Stopped(number(signal)?)),
            ["stuck", pid] => Ok(Self::Stuck(number(pid)?)),
            ["ended", cause, how, code] => {
                let cause = match cause {
                    "itself" => Cause::Itself,
                    "deadline" => Cause::Deadline,
                    _ => return Err(NotUnderstood),
                };
                let how = match how {
                    "exited" => How::Exited(number(code)?),
                    "signalled" => How::Signalled(number(code)?),
                    _ => return Err(NotUnderstood),
                };
                Ok(Self::Ended(cause, how))
            }
            _ => Err(NotUnderstood),
        }
    }
}

fn number<N: FromStr>(text: &str) -> Result<N, NotUnderstood> {
    text.parse().map_err(|_| NotUnderstood)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let time = Time::at(Duration::from_secs(7));
        for order in [
            Order::Until(time),
            Order::Signal(15),
            Order::Stop,
            Order::Kill,
        ] {
            assert_eq!(order.to_string().parse(), Ok(order));
        }
        for report in [
            Report::Started(42),
            Report::Stopped(20),
            Report::Stuck(7),
            Report::Ended(Cause::Itself, How::Exited(3)),
            Report::Ended(Cause::Deadline, How::Signalled(9)),
        ] {
            assert_eq!(report.to_string().parse(), Ok(report));
        }
        for line in ["", "until", "until x", "stop now", "ended itself"] {
            assert_eq!(line.parse::<Order>(), Err(NotUnderstood), "{line}");
            assert_eq!(line.parse::<Report>(), Err(NotUnderstood), "{line}");
        }
    }
}
