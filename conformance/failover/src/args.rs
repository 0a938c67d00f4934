//! The arguments.

use std::ops::Range;
use std::time::Duration;

use lexopt::prelude::*;

use crate::cluster::Setup;
use crate::fault::Fault;
use crate::programs::Library;

pub(crate) const HELP: &str = "\
Promotes standbys of a PostgreSQL cluster under Patroni, again and again, while ten processes on
three libraries use locks, leases, a queue, limits and ids; then audits what they were told.

    failover [--promotions N]    how many promotions (10 unless set)
             [--seed N]          what decides their order and their victims
             [--kind NAME]       only promotions of this kind; may be repeated:
                                 switch-over, kill, crash, stop, partition, cut
             [--synchronous]     commits wait for a standby
             [--control]         without what keeps tokens and ids from repeating: the audit must fail
             [--proxy]           processes reach the primary through a proxy with health checks, and not
                                 by a URL of three hosts
             [--key-lives N]     for how many seconds the leader's key lives in etcd (8 unless set); longer
                                 where other programs keep the machine busy
             [--jobs N]          how many jobs (100,000 unless set)
             [--processes N]     how many processes (10 unless set)
             [--log DIR]         keeps the logs of the servers

The exit status is 1 if a promise was broken.";

pub(crate) enum Task {
    Help,
    Drill(Settings),
    /// One of the processes: the program starts itself with this.
    Process {
        library: Library,
        jobs: Range<u64>,
        over: Duration,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) promotions: usize,
    pub(crate) seed: u64,
    pub(crate) kinds: Vec<Fault>,
    pub(crate) control: bool,
    pub(crate) setup: Setup,
    pub(crate) jobs: u64,
    pub(crate) processes: usize,
    pub(crate) log: Option<std::path::PathBuf>,
}

impl Settings {
    /// How long jobs are pushed: about as long as the promotions take.
    pub(crate) fn pushing(&self) -> Duration {
        Duration::from_secs(7 + self.setup.key_lives)
            * u32::try_from(self.promotions).unwrap_or(u32::MAX)
    }
}

pub(crate) fn parse() -> Result<Task, lexopt::Error> {
    let mut settings = Settings {
        promotions: 10,
        seed: 1,
        kinds: Vec::new(),
        control: false,
        setup: Setup {
            synchronous: false,
            proxy: false,
            key_lives: 8,
        },
        jobs: 100_000,
        processes: 10,
        log: None,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("help") | Short('h') => return Ok(Task::Help),
            Long("promotions") => settings.promotions = parser.value()?.parse()?,
            Long("seed") => settings.seed = parser.value()?.parse()?,
            Long("kind") => {
                let name = parser.value()?.string()?;
                let known = Fault::ALL.map(Fault::name).join(", ");
                let unknown = || format!("--kind {name}; allowed are {known}");
                settings
                    .kinds
                    .push(Fault::named(&name).ok_or_else(unknown)?);
            }
            Long("synchronous") => settings.setup.synchronous = true,
            Long("control") => settings.control = true,
            Long("proxy") => settings.setup.proxy = true,
            Long("key-lives") => settings.setup.key_lives = parser.value()?.parse()?,
            Long("jobs") => settings.jobs = parser.value()?.parse()?,
            Long("processes") => settings.processes = parser.value()?.parse()?,
            Long("log") => settings.log = Some(parser.value()?.into()),
            Value(word) if word == "process" => return process(&mut parser),
            _ => return Err(arg.unexpected()),
        }
    }
    if settings.kinds.is_empty() {
        settings.kinds = Fault::ALL.to_vec();
    }
    if settings.promotions == 0 || settings.processes == 0 {
        return Err("--promotions 0 or --processes 0; allowed are 1 or more of each".into());
    }
    Ok(Task::Drill(settings))
}

fn process(parser: &mut lexopt::Parser) -> Result<Task, lexopt::Error> {
    let word = parser.value()?.string()?;
    let library = Library::ALL
        .into_iter()
        .find(|library| library.word() == word);
    Ok(Task::Process {
        library: library.ok_or_else(|| format!("no library is called {word:?}"))?,
        jobs: parser.value()?.parse()?..parser.value()?.parse()?,
        over: Duration::from_millis(parser.value()?.parse()?),
    })
}
