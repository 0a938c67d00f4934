//! The programs of tests, and which of them concern a file.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fmt, fs};

use crate::args::Settings;
use crate::run::{self, Verdict};
use crate::{Result, binary};

/// The tests of statements, and the comparisons with the model.
const STATEMENTS: Part = ("sql", &[]);

/// By the beginning of the path of a file: what runs the statement besides, in this order.
const OTHERS: [(&str, &[Part]); 15] = [
    ("admin/examine/", &[("doctor", &[])]),
    (
        "admin/operations/",
        &[
            cases(&[
                "generic::admin::",
                "generic::operator::",
                "generic::matches::",
                "generic::history::",
                "generic::cancel::",
                "generic::views::",
            ]),
            ("commands", &[]),
        ],
    ),
    (
        "driver/",
        &[
            ("pools", &[]),
            ("transact", &[]),
            cases(&["generic::transactions::", "generic::places::"]),
        ],
    ),
    (
        "engine/",
        &[
            ("lifecycle", &[]),
            cases(&[
                "generic::failover::",
                "generic::unanswered::",
                "generic::places::",
                "generic::schema::",
            ]),
        ],
    ),
    ("id/", &[cases(&["generic::ids::", "generic::clocks::"])]),
    ("idempotency/", &[cases(&["generic::idempotency::"])]),
    (
        "lease/",
        &[cases(&[
            "generic::lease::",
            "generic::holding::",
            "generic::semaphore::",
            "generic::fences::",
            "generic::election::",
            "generic::locked::",
        ])],
    ),
    (
        "limit/",
        &[cases(&[
            "generic::limiter",
            "generic::locked::",
            "generic::clocks::",
        ])],
    ),
    (
        "migrate/",
        &[("lifecycle", &[]), cases(&["generic::schema::"])],
    ),
    (
        "mutex/",
        &[cases(&[
            "generic::mutex::",
            "generic::rw_lock::",
            "generic::fences::",
            "generic::deadlocks::",
            "generic::views::",
        ])],
    ),
    (
        "queue/",
        &[
            cases(&[
                "generic::queue",
                "generic::groups::",
                "generic::cancel::",
                "generic::locked::",
                "generic::history::",
            ]),
            cases(&[
                "generic::worker",
                "generic::transactions::",
                "generic::failover::",
            ]),
        ],
    ),
    (
        "rights/",
        &[("lifecycle", &["roles::"]), cases(&["generic::rights::"])],
    ),
    (
        "schedule/",
        &[cases(&[
            "generic::schedule::",
            "generic::clocks::",
            "generic::failover::",
        ])],
    ),
    ("table/", &[cases(&["generic::tables::"])]),
    ("versioned/", &[cases(&["generic::versioned::"])]),
];

/// By the beginning of the path of a migration: the statements that call its functions.
const CALLING: [(&str, &str); 7] = [
    ("migrations/0001", "mutex/"),
    ("migrations/0004", "limit/"),
    ("migrations/0007", "engine/"),
    ("migrations/0008", "admin/operations/"),
    ("migrations/0012", "limit/"),
    ("migrations/0013", "engine/"),
    ("migrations/", "queue/"),
];

/// Where the statements are not among those of which the tests of statements see what they do.
const NOT_COMPARED: [&str; 5] = [
    "admin/examine/",
    "driver/",
    "engine/",
    "migrate/",
    "rights/",
];

/// The tests that start the program of operators.
const STARTING: [&str; 2] = ["doctor", "commands"];

/// Not these: they compare the texts with the files, explain them, or take long.
const LEFT_OUT: [&str; 3] = ["are_all_listed", "plans::", "statistics::"];

/// The cases of the suite on one library, whose names have one of these parts.
const fn cases(parts: &'static [&'static str]) -> Part {
    ("sqlx", parts)
}

/// Some tests: their target, and the parts of their names.
type Part = (&'static str, &'static [&'static str]);

/// Some tests of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tests {
    target: String,
    parts: Vec<String>,
}

impl fmt::Display for Tests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, parts, .. } = self;
        match &parts[..] {
            [] => write!(f, "the tests of {target}"),
            parts => write!(f, "those of {target} with {}", parts.join(", ")),
        }
    }
}

impl Tests {
    /// Those of a file, in the order in which they are run.
    pub(crate) fn of(path: &str, settings: &Settings) -> Vec<Self> {
        if let Some(target) = &settings.test {
            return vec![Self {
                target: target.clone(),
                parts: settings.only.clone(),
            }];
        }
        let begins = |part: &&str| path.starts_with(part);
        let compared = !NOT_COMPARED.iter().any(begins);
        let calling = CALLING.iter().find(|(part, _)| begins(part));
        let path = calling.map_or(path, |(_, calling)| calling);
        let others = OTHERS.iter().find(|(part, _)| path.starts_with(part));
        let others = others.into_iter().flat_map(|(_, tests)| tests.iter());
        let statements = compared.then_some(&STATEMENTS);
        // The program of the suite takes one part at a time.
        let each = |(target, parts): &Part| {
            let part = |part: &&'static str| (*target, vec![(*part).to_owned()]);
            match parts {
                [] => vec![(*target, Vec::new())],
                parts => parts.iter().map(part).collect(),
            }
        };
        let all = statements.into_iter().chain(others).flat_map(each);
        all.map(|(target, parts)| Self {
            target: target.to_owned(),
            parts,
        })
        .collect()
    }

    fn arguments(&self, settings: &Settings) -> Vec<String> {
        let mut arguments = self.parts.clone();
        arguments.push(format!("--test-threads={}", settings.threads));
        let skipped = LEFT_OUT.iter().map(|name| (*name).to_owned());
        for name in skipped.chain(settings.skip.iter().cloned()) {
            arguments.extend(["--skip".to_owned(), name]);
        }
        arguments
    }
}

/// A program of tests, without a change.
pub(crate) struct Program {
    pub(crate) bytes: Vec<u8>,
    pub(crate) arguments: Vec<String>,
    /// How long they take.
    pub(crate) took: Duration,
    /// The program that the tests start, where the statements are.
    pub(crate) started: Option<(PathBuf, Vec<u8>)>,
}

/// The programs that were needed so far.
#[derive(Default)]
pub(crate) struct Programs(Vec<(Tests, Program)>);

impl Programs {
    /// That of some tests. It is built and run once.
    pub(crate) fn of(&mut self, tests: &Tests, settings: &Settings) -> Result<&Program> {
        if let Some(at) = self.0.iter().position(|(of, _)| of == tests) {
            return Ok(&self.0[at].1);
        }
        let path = binary::build(&tests.target)?;
        let arguments = tests.arguments(settings);
        if run::count(&path, &arguments)? == 0 {
            return Err(format!("{tests}: there are none").into());
        }
        let began = Instant::now();
        let unchanged = run::run(&path, &arguments, (settings.limit, None))?;
        if unchanged != Verdict::Passed {
            return Err(format!("{tests}, without a change: {unchanged:?}").into());
        }
        let took = began.elapsed();
        println!("{tests} take {:.0} s", took.as_secs_f64());
        let bytes = fs::read(&path)?;
        let started = if STARTING.contains(&&*tests.target) {
            let folder = path.parent().and_then(Path::parent);
            let path = folder.ok_or("tests are in no folder")?.join("lockapi");
            let bytes = fs::read(&path)?;
            Some((path, bytes))
        } else {
            None
        };
        let program = Program {
            bytes,
            arguments,
            took,
            started,
        };
        self.0.push((tests.clone(), program));
        Ok(&self.0[self.0.len() - 1].1)
    }
}
