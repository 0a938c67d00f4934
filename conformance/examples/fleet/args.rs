//! The arguments.

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::slice;
use std::time::Duration;

use lexopt::prelude::{Long, Short, Value, ValueExt};

use crate::library::Library;

pub(crate) const HELP: &str = "\
A fleet of workers shares recurring tasks through a scheduler in PostgreSQL, while workers are killed,
stopped and cut off. In the end the log tells whether every due task was run exactly once.

Usage: cargo run --release -p lockapi-conformance --example fleet -- [options]

Options:
  --backend NAME         what the workers use: mix (default) for processes on PostgreSQL that use
                         sqlx, Diesel and the blocking postgres crate by turns; sqlx, diesel or
                         sync for processes that all use that one; memory for no database and
                         all in this process
  --workers N            how many workers, 1 to 100 (default 10)
  --tasks N              how many recurring tasks, 1 to 1000 (default 100)
  --seconds N            how long tasks fall due, 2 to 3600 (default 40)
  --kill N               how many workers are killed, 0 to 20 (default 2); besides, one is stopped
                         for a while, one loses its connections, and one both
  --no-kill              leave the workers alone
  --web                  serve the page of the operator's command meanwhile, and tell its address
  --without-fencing      complete runs without the token of their delivery: shows what it is for, and
                         that the audit can fail
  -h, --help             this text

A private PostgreSQL server is started and removed again; it has to be installed only. If the
environment variable DATABASE_URL is set, that server is used, and the log stays there in the
schema fleet. Kill workers yourself, if you like: their processes are called `fleet worker`.

Exit status: 0 when every due run was completed exactly once, 1 when one was missed or run twice,
2 for bad arguments, 3 when the fleet could not run, 130 when it was interrupted.
";

/// What the program is to do.
#[derive(Debug)]
pub(crate) enum Command {
    Help,
    Fleet(Settings),
    /// Be a worker; the program starts itself with this.
    Worker {
        node: String,
        library: Library,
        safety: Safety,
    },
}

/// Which backend the workers use.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Backend {
    /// Those of these libraries, by turns.
    Libraries(&'static [Library]),
    Memory,
}

impl Backend {
    fn parse(name: &str) -> Result<Self, String> {
        let one = |library: &&Library| library.word() == name;
        match name {
            "mix" => Ok(Self::Libraries(&Library::ALL)),
            "memory" => Ok(Self::Memory),
            _ => match Library::ALL.iter().find(one) {
                Some(library) => Ok(Self::Libraries(slice::from_ref(library))),
                None => Err(format!(
                    "--backend {name}; allowed are mix, sqlx, diesel, sync and memory"
                )),
            },
        }
    }
}

/// What keeps the workers from doing the same thing twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Safety {
    /// What a run writes is written together with its completion, which is refused under a token that
    /// is not the latest.
    Full,
    NoFencing,
}

impl Safety {
    /// The option that chooses it.
    pub(crate) fn option(self) -> Option<&'static str> {
        match self {
            Self::Full => None,
            Self::NoFencing => Some("--without-fencing"),
        }
    }

    /// What the option leaves out.
    pub(crate) fn lacks(self) -> Option<&'static str> {
        match self {
            Self::Full => None,
            Self::NoFencing => Some("fencing"),
        }
    }
}

/// The fleet to run.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) backend: Backend,
    pub(crate) workers: usize,
    pub(crate) tasks: usize,
    pub(crate) time: Duration,
    /// How many workers are killed; `None` leaves all alone.
    pub(crate) kills: Option<usize>,
    pub(crate) safety: Safety,
    /// Whether the page is served.
    pub(crate) web: bool,
}

pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, String> {
    parse_all(lexopt::Parser::from_iter(arguments)).map_err(|error| error.to_string())
}

fn parse_all(mut parser: lexopt::Parser) -> Result<Command, lexopt::Error> {
    let mut settings = Settings {
        backend: Backend::Libraries(&Library::ALL),
        workers: 10,
        tasks: 100,
        time: Duration::from_secs(40),
        kills: Some(2),
        safety: Safety::Full,
        web: false,
    };
    let mut worker = None;
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Help),
            Long("backend") => {
                settings.backend = Backend::parse(&parser.value()?.string()?)?;
            }
            Long("workers") => settings.workers = number(&mut parser, "--workers", 1..=100)?,
            Long("tasks") => settings.tasks = number(&mut parser, "--tasks", 1..=1000)?,
            Long("seconds") => {
                let seconds = number(&mut parser, "--seconds", 2..=3600)?;
                settings.time = Duration::from_secs(seconds as u64);
            }
            Long("kill") => settings.kills = Some(number(&mut parser, "--kill", 0..=20)?),
            Long("web") => settings.web = true,
            Long("no-kill") => settings.kills = None,
            Long("without-fencing") => settings.safety = Safety::NoFencing,
            Value(word) if worker.is_none() && word == "worker" => {
                worker = Some(parser.value()?.string()?);
            }
            other => return Err(other.unexpected()),
        }
    }
    match (worker, settings.backend) {
        (None, Backend::Memory) if settings.web => Err(
            "a fleet in memory has no page; allowed with --web are the fleets on PostgreSQL".into(),
        ),
        (None, _) => Ok(Command::Fleet(settings)),
        (Some(node), Backend::Libraries(&[library])) => Ok(Command::Worker {
            node,
            library,
            safety: settings.safety,
        }),
        (Some(_), _) => Err(
            "a worker goes with one library; allowed are --backend sqlx, diesel and sync".into(),
        ),
    }
}

fn number(
    parser: &mut lexopt::Parser,
    option: &str,
    allowed: RangeInclusive<usize>,
) -> Result<usize, lexopt::Error> {
    let text = parser.value()?.string()?;
    text.parse()
        .ok()
        .filter(|number| allowed.contains(number))
        .ok_or_else(|| {
            let (least, most) = (allowed.start(), allowed.end());
            format!("{option} {text}; allowed are {least} to {most}").into()
        })
}
