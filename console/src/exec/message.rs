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

#[cfg(test)]
mod fuzz {
    use std::time::Duration;

    use lockapi_fuzz::{check, text_like};
    use proptest::prelude::{Just, Strategy, any, prop_oneof};
    use proptest::{prop_assert, prop_assert_eq};

    use super::*;

    fn order() -> impl Strategy<Value = Order> {
        prop_oneof![
            any::<u64>().prop_map(|micros| Order::Until(Time::at(Duration::from_micros(micros)))),
            any::<i32>().prop_map(Order::Signal),
            Just(Order::Stop),
            Just(Order::Kill),
        ]
    }

    fn report() -> impl Strategy<Value = Report> {
        let how = prop_oneof![
            any::<i32>().prop_map(How::Exited),
            any::<i32>().prop_map(How::Signalled)
        ];
        let cause = prop_oneof![Just(Cause::Itself), Just(Cause::Deadline)];
        prop_oneof![
            any::<i32>().prop_map(Report::Started),
            any::<i32>().prop_map(Report::Stopped),
            any::<i32>().prop_map(Report::Stuck),
            (cause, how).prop_map(|(cause, how)| Report::Ended(cause, how)),
        ]
    }

    #[test]
    fn what_is_said_is_one_line_and_understood() {
        let known = [i32::MIN, -1, 0, i32::MAX].map(|n| {
            (
                Order::Signal(n),
                Report::Ended(Cause::Itself, How::Exited(n)),
            )
        });
        check(known, &(order(), report()), |(order, report)| {
            let (said, told) = (order.to_string(), report.to_string());
            prop_assert!(!said.contains('\n') && !told.contains('\n'));
            prop_assert_eq!(said.parse(), Ok(order));
            prop_assert_eq!(told.parse(), Ok(report));
            prop_assert_eq!(said.parse::<Report>(), Err(NotUnderstood));
            prop_assert_eq!(told.parse::<Order>(), Err(NotUnderstood));
            Ok(())
        });
    }

    /// Its words have the places and numbers of what it is understood as.
    #[test]
    fn nothing_else_is_understood() {
        let known = [
            "",
            " ",
            "stop",
            "stop ",
            " stop",
            "Stop",
            "kill 9",
            "until 7",
            "until 18446744073709551616",
            "until -1",
            "signal 15",
            "signal 2147483648",
            "signal +15",
            "started 42",
            "stopped 20",
            "stuck 7",
            "ended itself exited 3",
            "ended deadline signalled 9",
            "ended itself exited",
            "ended  itself exited 3",
            "ended itself exited 3 4",
        ];
        check(known.map(str::to_owned), &text_like(&known), |line| {
            let words: Vec<&str> = line.split(' ').collect();
            let read = |said: &str| {
                let said: Vec<_> = said.split(' ').collect();
                let alike = said.iter().zip(&words).all(|(said, word)| {
                    said == word
                        || word
                            .parse::<i128>()
                            .is_ok_and(|number| number.to_string() == *said)
                });
                said.len() == words.len() && alike
            };
            if let Ok(order) = line.parse::<Order>() {
                prop_assert!(read(&order.to_string()), "{order:?}");
            }
            if let Ok(report) = line.parse::<Report>() {
                prop_assert!(read(&report.to_string()), "{report:?}");
            }
            Ok(())
        });
    }
}
