//! The arguments.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use lexopt::prelude::{Long, Short, Value, ValueExt};

use crate::plan::Fault;

pub(crate) const HELP: &str = "\
Programs of all libraries share locks, leases, queues, limits and ids on a private PostgreSQL server, while
processes, server, network and pooler fail. Every call and every answer is logged, and checked in the end.

Usage: make torture ARGS='[options]'

    --seconds N        for how long faults are applied in a round, 20 to 86400 (default 180), to which it takes a minute
                       or two to begin and to end; in less than 120 the seed draws the kinds that there is time for
    --hours N          rounds with consecutive seeds until so many hours are over
    --seed N           what the faults of the first round are drawn from (default: drawn, and printed)
    --programs N       how many programs use the library, 1 to 60 (default 7); beside them there are two that
                       use plain SQL
    --without KIND     without these faults; several are separated by commas
    --only KIND        with these faults only
    --control NAME     breaks a rule in the programs, which the checker has to find:
                       unchecked  writes are not checked in
                       outside    what is to happen with an acknowledgement happens before it
                       greedy     what a limit refuses is done nevertheless
                       hoard      permits are kept until the end
                       beyond     jobs are claimed without regard to the limit of their queue
                       stubborn   handlers go on when their delivery is lost
                       quiet      no faults at all, so neither --only nor --without, and nothing may fail; needs
                                  a machine that has time
    --keep             keeps the logs, and says where they are
    -h, --help         this text

Exit status: 0 when nothing was violated and every kind of fault had an effect, 1 otherwise, 2 for bad
arguments, 3 when the server or the programs could not be run or no fault can be applied, 4 when nothing was violated, and the
machine was too busy to judge what failed in the calm, 5 when the promise that a control breaks was not found to be broken.
";

/// How long a round has faults, and of how many programs, unless something else is asked for.
const TIME: Duration = Duration::from_mins(3);
const PROGRAMS: usize = 7;

/// A database library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    Sqlx,
    Diesel,
    Sync,
}

impl Library {
    pub(crate) const ALL: [Self; 3] = [Self::Sqlx, Self::Diesel, Self::Sync];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sqlx => "sqlx",
            Self::Diesel => "diesel",
            Self::Sync => "postgres",
        }
    }
}

/// A rule that programs break on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    Unchecked,
    Outside,
    Greedy,
    Hoard,
    Beyond,
    Stubborn,
    Quiet,
}

impl Control {
    const ALL: [(&'static str, Self); 7] = [
        ("unchecked", Self::Unchecked),
        ("outside", Self::Outside),
        ("greedy", Self::Greedy),
        ("hoard", Self::Hoard),
        ("beyond", Self::Beyond),
        ("stubborn", Self::Stubborn),
        ("quiet", Self::Quiet),
    ];

    fn parse(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        let unknown = || {
            let names = Self::ALL.map(|(name, _)| name).join(", ");
            format!("--control {name}; allowed are {names}")
        };
        found.map(|(_, control)| *control).ok_or_else(unknown)
    }

    /// The promises of which its rule is a part: one of them at least has to be found to be broken.
    pub(crate) fn breaks(self) -> &'static [&'static str] {
        match self {
            Self::Unchecked => &["no stale write is accepted"],
            Self::Outside => &["effects of a transaction happen once"],
            Self::Greedy => &["limits hold"],
            Self::Hoard => &["everybody is served in the end"],
            Self::Beyond => &["no more jobs run than may"],
            Self::Stubborn => &["a job has one handler", "no more jobs run than may"],
            Self::Quiet => &[],
        }
    }

    pub(crate) fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(_, known)| *known == self);
        found.map_or("", |(name, _)| name)
    }
}

/// What a program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It uses a library, through blocking calls or not, behind a pooler or not.
    Library { library: Library, blocking: bool },
    /// It knows SQL.
    Plain,
}

/// A program, as it is told by the one that starts it.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) role: Role,
    /// Of its log, and of what it writes.
    pub(crate) number: u64,
    pub(crate) log: PathBuf,
    pub(crate) control: Option<Control>,
}

/// A run.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) time: Duration,
    pub(crate) total: Option<Duration>,
    pub(crate) seed: u64,
    pub(crate) programs: usize,
    pub(crate) faults: Vec<Fault>,
    pub(crate) control: Option<Control>,
    pub(crate) keep: bool,
}

impl Settings {
    /// The arguments of a round with this seed: what its faults are drawn from.
    pub(crate) fn again(&self, seed: u64) -> String {
        let mut words = Vec::new();
        if self.time != TIME {
            words.push(format!("--seconds {}", self.time.as_secs()));
        }
        if self.programs != PROGRAMS {
            words.push(format!("--programs {}", self.programs));
        }
        if let Some(control) = self.control {
            words.push(format!("--control {}", control.name()));
        }
        if !self.faults.is_empty() && self.faults != Fault::ALL {
            let names: Vec<_> = self.faults.iter().map(|fault| fault.name()).collect();
            words.push(format!("--only {}", names.join(",")));
        }
        words.push(format!("--seed {seed}"));
        words.join(" ")
    }
}

#[derive(Debug)]
pub(crate) enum Command {
    Help,
    Run(Settings),
    Program(Program),
}

pub(crate) fn parse() -> Result<Command, lexopt::Error> {
    let mut parser = lexopt::Parser::from_env();
    let mut settings = Settings {
        time: TIME,
        total: None,
        seed: fastrand::u64(1..1_000_000),
        programs: PROGRAMS,
        faults: Fault::ALL.to_vec(),
        control: None,
        keep: false,
    };
    let mut omitted = Vec::new();
    let mut chosen = false;
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Help),
            Long("seconds") => {
                settings.time = Duration::from_secs(number(&mut parser, "--seconds", 20, 86_400)?);
            }
            Long("hours") => {
                let hours: f64 = value(&mut parser, "--hours")?;
                let total = Duration::try_from_secs_f64(hours * 3600.0);
                settings.total = Some(total.map_err(|error| format!("--hours {hours}: {error}"))?);
            }
            Long("seed") => settings.seed = value(&mut parser, "--seed")?,
            Long("programs") => {
                let programs = number(&mut parser, "--programs", 1, 60)?;
                settings.programs = usize::try_from(programs).unwrap_or(1);
            }
            Long("without") => {
                omitted.extend(faults(&parser.value()?.string()?)?);
                chosen = true;
            }
            Long("only") => {
                settings.faults = faults(&parser.value()?.string()?)?;
                settings.faults.sort_unstable();
                settings.faults.dedup();
                chosen = true;
            }
            Long("control") => {
                settings.control = Some(Control::parse(&parser.value()?.string()?)?);
            }
            Long("keep") => settings.keep = true,
            Value(word) if word == "program" => return program(&mut parser),
            other => return Err(other.unexpected()),
        }
    }
    settings.faults.retain(|fault| !omitted.contains(fault));
    if settings.control == Some(Control::Quiet) {
        if chosen {
            let message = "--control quiet has no faults: neither --only nor --without is allowed";
            return Err(message.into());
        }
        settings.faults.clear();
    } else if settings.faults.is_empty() {
        return Err("--without leaves out all faults; allowed is any number but all".into());
    }
    Ok(Command::Run(settings))
}

fn value<T: FromStr<Err: Display>>(
    parser: &mut lexopt::Parser,
    option: &str,
) -> Result<T, lexopt::Error> {
    let word = parser.value()?.string()?;
    let parsed = word.parse::<T>();
    Ok(parsed.map_err(|error| format!("{option} {word}: {error}"))?)
}

fn number(
    parser: &mut lexopt::Parser,
    option: &str,
    least: u64,
    most: u64,
) -> Result<u64, lexopt::Error> {
    let number: u64 = value(parser, option)?;
    if (least..=most).contains(&number) {
        return Ok(number);
    }
    Err(format!("{option} {number}; allowed are {least} to {most}").into())
}

fn faults(names: &str) -> Result<Vec<Fault>, lexopt::Error> {
    let named = |name: &str| {
        Fault::named(name).ok_or_else(|| {
            let names = Fault::ALL.map(Fault::name).join(", ");
            format!("{name} is no fault; allowed are {names}")
        })
    };
    let faults: Result<Vec<_>, _> = names.split(',').map(named).collect();
    Ok(faults?)
}

/// What [`arguments`] wrote.
fn program(parser: &mut lexopt::Parser) -> Result<Command, lexopt::Error> {
    let mut word = || parser.value()?.string();
    let role = match &*word()? {
        "plain" => Role::Plain,
        name => {
            let library = Library::ALL.into_iter().find(|it| it.name() == name);
            Role::Library {
                library: library.ok_or("a library")?,
                blocking: word()? == "blocking",
            }
        }
    };
    let number = word()?.parse::<u64>().map_err(|error| error.to_string())?;
    let log = PathBuf::from(word()?);
    let control = match &*word()? {
        "" => None,
        name => Some(Control::parse(name)?),
    };
    Ok(Command::Program(Program {
        role,
        number,
        log,
        control,
    }))
}

/// The arguments that start this program as another.
pub(crate) fn arguments(program: &Program) -> Vec<String> {
    let mut words = vec!["program".to_owned()];
    match program.role {
        Role::Plain => words.push("plain".to_owned()),
        Role::Library { library, blocking } => {
            words.push(library.name().to_owned());
            words.push(if blocking { "blocking" } else { "async" }.to_owned());
        }
    }
    words.push(program.number.to_string());
    words.push(program.log.display().to_string());
    words.push(program.control.map_or("", Control::name).to_owned());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_repeated_with_its_options() {
        let mut settings = Settings {
            time: TIME,
            total: None,
            seed: 4,
            programs: PROGRAMS,
            faults: Fault::ALL.to_vec(),
            control: None,
            keep: false,
        };
        assert_eq!(settings.again(5), "--seed 5");
        settings.faults = vec![Fault::Kill, Fault::HalfOpen];
        settings.time = Duration::from_mins(1);
        settings.control = Some(Control::Greedy);
        let again = "--seconds 60 --control greedy --only kill,half-open --seed 5";
        assert_eq!(settings.again(5), again);
    }
}
