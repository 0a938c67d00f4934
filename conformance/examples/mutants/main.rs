//! Changes statements of the library one at a time, and sees whether a test fails.
//!
//! ```text
//! cargo run -p lockapi-conformance --example mutants -- --help
//! ```
//!
//! A change keeps the length of the text, so nothing is compiled: it is written into a copy of the program
//! of the tests. A change that the server does not accept counts for nothing, and a survivor that
//! `docs/mutants.md` explains does not count against the tests.

mod args;
mod binary;
mod mutate;
mod run;
mod source;
mod tests;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use args::Settings;
use lockapi::blocking::Backend;
use lockapi_conformance::cluster::Cluster;
use mutate::Mutation;
use postgres::{Client, NoTls};
use run::Verdict;
use source::Source;
use tests::{Programs, Tests};

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// How often a test that failed is tried again. Some tests are random.
const TRIES: usize = 3;

fn main() -> ExitCode {
    let outcome = match args::parse() {
        Ok(Some(settings)) => mutate(&settings),
        Ok(None) => {
            println!("{}", args::HELP);
            Ok(true)
        }
        Err(problem) => {
            eprintln!("mutants: {problem}\nTry --help.");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("mutants: {problem}");
            ExitCode::from(3)
        }
    }
}

/// What became of the changes.
#[derive(Default)]
struct Tally {
    killed: usize,
    survived: usize,
    explained: usize,
    not_applicable: usize,
}

/// Whether enough changes were noticed.
fn mutate(settings: &Settings) -> Result<bool> {
    let chosen = choose(settings)?;
    if settings.list {
        for (source, mutation) in &chosen {
            tell("", source, mutation);
        }
        println!("{} changes", chosen.len());
        return Ok(true);
    }
    // This process keeps the server that all runs share.
    let cluster = Cluster::shared()?;
    Backend::connect(lockapi_postgres::connect_url(cluster.url()))?.migrate()?;
    let mut client = Client::connect(cluster.url(), NoTls)?;
    let mut programs = Programs::default();
    println!("seed {}", settings.seed);
    let explained = source::explained();
    let mut tally = Tally::default();
    for (source, mutation) in &chosen {
        let changed = source.changed(mutation);
        let new = Source::statement(&changed);
        if let Err(error) = client.prepare(new) {
            tally.not_applicable += 1;
            let message = error.as_db_error().map_or("", |error| error.message());
            tell(&format!("refused: {message}"), source, mutation);
            continue;
        }
        let old = Source::statement(&source.text);
        let verdict = verdict(&mut programs, source, (old, new), settings)?;
        let Some(verdict) = verdict else {
            tally.not_applicable += 1;
            tell("not found", source, mutation);
            continue;
        };
        match verdict {
            Verdict::Unsteady(test) => {
                tally.survived += 1;
                tell(&format!("SURVIVED: {test} failed once"), source, mutation);
            }
            Verdict::Failed(test) => {
                tally.killed += 1;
                tell(&format!("killed by {test}"), source, mutation);
            }
            Verdict::Stuck(how) => {
                tally.killed += 1;
                tell(&format!("killed: {how}"), source, mutation);
            }
            Verdict::Passed if source::is_explained(&explained, source, mutation) => {
                tally.explained += 1;
                tell("explained", source, mutation);
            }
            Verdict::Passed => {
                tally.survived += 1;
                tell("SURVIVED", source, mutation);
            }
        }
    }
    let counted = tally.killed + tally.survived;
    let rate = (tally.killed * 100).checked_div(counted).unwrap_or(100);
    println!(
        "{} killed, {} survived, {} explained, {} not applicable: {rate} %",
        tally.killed, tally.survived, tally.explained, tally.not_applicable
    );
    Ok(rate >= settings.at_least)
}

/// What the tests say of a change; nothing if none of their programs has the statement.
fn verdict(
    programs: &mut Programs,
    source: &Source,
    (old, new): (&str, &str),
    settings: &Settings,
) -> Result<Option<Verdict>> {
    let copy = std::env::temp_dir().join(format!("mutant-{}", std::process::id()));
    let mut verdict = None;
    for tests in Tests::of(&source.path, settings) {
        let program = programs.of(&tests, settings)?;
        let places = binary::places(&program.bytes, old.as_bytes());
        let started = program.started.as_ref().map(|(path, bytes)| {
            let places = binary::places(bytes, old.as_bytes());
            (path, bytes, places)
        });
        let in_started = started
            .as_ref()
            .is_some_and(|(.., places)| !places.is_empty());
        if places.is_empty() && !in_started {
            continue;
        }
        binary::write(&copy, &program.bytes, &places, new.as_bytes())?;
        if let Some((path, bytes, places)) = &started {
            binary::write(path, bytes, places, new.as_bytes())?;
        }
        let said = confirmed(&copy, &program.arguments, settings);
        fs::remove_file(&copy)?;
        if let Some((path, bytes, _)) = &started {
            binary::write(path, bytes, &[], &[])?;
        }
        match (said?, &verdict) {
            (Verdict::Passed, Some(_)) => {}
            (said @ (Verdict::Passed | Verdict::Unsteady(_)), _) => verdict = Some(said),
            (said, _) => return Ok(Some(said)),
        }
    }
    Ok(verdict)
}

/// What a program says. A test that fails has to fail again, alone: a failure that has to do with
/// the load of the machine says nothing of the change. Then the others have to be run as well.
fn confirmed(program: &Path, arguments: &[String], settings: &Settings) -> Result<Verdict> {
    let mut arguments = arguments.to_vec();
    let mut unsteady = None;
    loop {
        let verdict = run::run(program, &arguments, settings.limit)?;
        let Verdict::Failed(test) = &verdict else {
            return Ok(match unsteady {
                Some(test) if verdict == Verdict::Passed => Verdict::Unsteady(test),
                _ => verdict,
            });
        };
        let alone = [test.clone(), "--exact".to_owned()];
        for _ in 0..TRIES {
            if run::run(program, &alone, settings.limit)? != Verdict::Passed {
                return Ok(verdict);
            }
        }
        arguments.extend(["--skip".to_owned(), test.clone()]);
        unsteady = Some(test.clone());
    }
}

/// Some of all changes, by the seed.
fn choose(settings: &Settings) -> Result<Vec<(Source, Mutation)>> {
    let wanted = |source: &Source| {
        let mut parts = settings.files.iter();
        settings.files.is_empty() || parts.any(|part| source.path.contains(part))
    };
    let mut all = Vec::new();
    for source in source::all()?.into_iter().filter(wanted) {
        for mutation in source.mutations() {
            if settings.kinds.is_empty() || settings.kinds.contains(&mutation.kind) {
                all.push((source.clone(), mutation));
            }
        }
    }
    if settings.count > 0 {
        fastrand::Rng::with_seed(settings.seed).shuffle(&mut all);
        all.truncate(settings.count);
    }
    Ok(all)
}

fn tell(outcome: &str, source: &Source, mutation: &Mutation) {
    let place = format!("{}:{}", source.path, mutation.line);
    println!("{place} {} {outcome}", mutation.kind);
    println!("  - {}\n  + {}", mutation.old.trim(), mutation.new.trim());
}
