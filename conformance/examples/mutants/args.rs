//! What is to be done.

use std::time::Duration;

use lexopt::prelude::{Long, ValueExt};

use crate::Result;
use crate::mutate::Kind;

pub(crate) const HELP: &str = "\
Changes statements of the library, and functions of its schema, one at a time, and sees whether a test fails.

  --seed N          which of the changes are made, a random number unless set
  --count N         how many, 20 unless set; 0 for all
  --file PART       of files whose path has this part, such as queue/ or migrations/; may be repeated
  --kind KIND       skip-locked, lock, order, reverse, limit, conflict, predicate, comparison, logic,
                    value, weaker, clock, first or condition; may be repeated
  --list            tells the changes and makes none
  --test NAME       the tests of this target of the suite, unless set those that concern the file
  --only TEST       with --test, those with this in their names; may be repeated
  --skip TEST       no tests with this in their names; may be repeated
  --threads N       how many tests at a time, 8 unless set
  --limit SECONDS   for how long the tests of a change may run, 180 unless set;
                    three times as long as without a change at least
  --at-least N      success from this percentage of killed ones on, if any count; 0 unless set";

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) seed: u64,
    pub(crate) count: usize,
    pub(crate) files: Vec<String>,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) list: bool,
    pub(crate) test: Option<String>,
    pub(crate) only: Vec<String>,
    pub(crate) skip: Vec<String>,
    pub(crate) threads: usize,
    pub(crate) limit: Duration,
    pub(crate) at_least: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: fastrand::u64(..1_000_000),
            count: 20,
            files: Vec::new(),
            kinds: Vec::new(),
            list: false,
            test: None,
            only: Vec::new(),
            skip: Vec::new(),
            threads: 8,
            limit: Duration::from_mins(3),
            at_least: 0,
        }
    }
}

/// The settings; `None` if only help is wanted.
pub(crate) fn parse() -> Result<Option<Settings>> {
    let mut settings = Settings::default();
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("seed") => settings.seed = arguments.value()?.parse()?,
            Long("count") => settings.count = arguments.value()?.parse()?,
            Long("file") => settings.files.push(arguments.value()?.string()?),
            Long("kind") => {
                let name = arguments.value()?.string()?;
                let known = Kind::ALL.map(Kind::name).join(", ");
                let unknown = format!("--kind {name}; allowed are {known}");
                let kind = Kind::parse(&name).ok_or(unknown)?;
                settings.kinds.push(kind);
            }
            Long("list") => settings.list = true,
            Long("test") => settings.test = Some(arguments.value()?.string()?),
            Long("only") => settings.only.push(arguments.value()?.string()?),
            Long("skip") => settings.skip.push(arguments.value()?.string()?),
            Long("threads") => settings.threads = arguments.value()?.parse()?,
            Long("limit") => {
                settings.limit = Duration::from_secs(arguments.value()?.parse()?);
            }
            Long("at-least") => settings.at_least = arguments.value()?.parse()?,
            Long("help") => return Ok(None),
            other => return Err(other.unexpected().into()),
        }
    }
    settings.check()?;
    Ok(Some(settings))
}

impl Settings {
    fn check(&self) -> Result<()> {
        if self.threads == 0 {
            return Err("--threads 0; allowed is one or more".into());
        }
        if self.at_least > 100 {
            let problem = format!("--at-least {}; allowed are 0 to 100", self.at_least);
            return Err(problem.into());
        }
        if self.test.is_none() && !self.only.is_empty() {
            return Err("--only is for the tests of a target; allowed is it with --test".into());
        }
        Ok(())
    }
}
