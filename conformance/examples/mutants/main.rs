//! Changes statements of the library, and the functions of its schema, one at a time, and sees whether a test fails.
//!
//! ```text
//! cargo run -p lockapi-conformance --example mutants -- --help
//! ```
//!
//! A change keeps the length of the text, so nothing is compiled: it is written into a copy of the program
//! of the tests. One of a function of the schema is tested on a server of its own, which that program migrates. A change
//! that the server does not accept counts for nothing, and a survivor that `docs/mutants.md` explains does not count against
//! the tests.

mod args;
mod binary;
mod mutate;
mod run;
mod source;
mod tests;

use std::fs;
use std::process::ExitCode;

use args::Settings;
use lockapi::blocking::Backend;
use lockapi_conformance::cluster::Cluster;
use mutate::Mutation;
use postgres::error::SqlState;
use postgres::{Client, NoTls};
use run::{OwnServer, Verdict};
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
    /// Of these, what is no statement: a change that says nothing, whatever the tests are.
    malformed: usize,
    /// Of these, what no program of the tests has in it.
    missing: usize,
}

impl Tally {
    /// How many percent were killed of those that count.
    fn rate(&self) -> Option<usize> {
        (self.killed * 100).checked_div(self.killed + self.survived)
    }
}

/// Whether enough changes were noticed.
fn mutate(settings: &Settings) -> Result<bool> {
    let (chosen, unfit) = choose(settings)?;
    if settings.list {
        for (source, mutation) in &chosen {
            tell("", source, mutation);
        }
        println!("{} changes; {unfit} others do not fit", chosen.len());
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
        if let Err(error) = try_out(&mut client, source, mutation, &changed) {
            // Otherwise nothing is known of the change.
            if client.is_closed() || error.as_db_error().is_none() {
                return Err(error.into());
            }
            tally.not_applicable += 1;
            let is_malformed = error.code() == Some(&SqlState::SYNTAX_ERROR);
            tally.malformed += usize::from(is_malformed);
            let message = error.as_db_error().map_or("", |error| error.message());
            tell(&format!("refused: {message}"), source, mutation);
            continue;
        }
        let old = Source::statement(&source.text);
        let verdict = verdict(&mut programs, source, (old, new), settings)?;
        let Some(verdict) = verdict else {
            tally.not_applicable += 1;
            tally.missing += 1;
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
    let rate = tally.rate();
    println!(
        "{} killed, {} survived, {} explained, {} not applicable ({} by their syntax, {} not found): {}",
        tally.killed,
        tally.survived,
        tally.explained,
        tally.not_applicable,
        tally.malformed,
        tally.missing,
        rate.map_or("none counts".to_owned(), |rate| format!("{rate} %"))
    );
    // What was not found was not tried, and no rate is known of it.
    let is_known = tally.missing == 0 || settings.at_least == 0;
    Ok(is_known && is_enough(rate, settings.at_least))
}

/// Whether the server accepts a change: a statement, or the definition of a function, which then is as before.
fn try_out(
    client: &mut Client,
    source: &Source,
    mutation: &Mutation,
    changed: &str,
) -> Result<(), postgres::Error> {
    let Some(function) = source.redefinition(changed, mutation) else {
        return client.prepare(Source::statement(changed)).map(drop);
    };
    let mut transaction = client.transaction()?;
    transaction.batch_execute(&function)?;
    transaction.rollback()
}

/// Tests that take so many times as long as without a change do not end in time.
const SLOWER: u32 = 3;

/// Whether so many percent were killed. Where nothing counts, that is known of none.
fn is_enough(rate: Option<usize>, at_least: usize) -> bool {
    rate.map_or(at_least == 0, |rate| rate >= at_least)
}

/// What the tests say of a change; nothing if none of their programs has the statement.
fn verdict(
    programs: &mut Programs,
    source: &Source,
    (old, new): (&str, &str),
    settings: &Settings,
) -> Result<Option<Verdict>> {
    let copy = std::env::temp_dir().join(format!("mutant-{}", std::process::id()));
    // A server of its own has the functions that are changed; another one has them as they are.
    let own = |name| {
        let own = source.is_migration().then(|| OwnServer::new(name));
        own.transpose()
    };
    let servers = [own("unchanged")?, own("changed")?];
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
        let limit = settings.limit.max(program.took * SLOWER);
        let run = |is_changed, arguments: &[String]| {
            let in_place = |places: &[usize]| if is_changed { places } else { &[] }.to_vec();
            binary::write(&copy, &program.bytes, &in_place(&places), new.as_bytes())?;
            if let Some((path, bytes, places)) = &started {
                binary::write(path, bytes, &in_place(places), new.as_bytes())?;
            }
            let server = servers[usize::from(is_changed)].as_ref();
            let folder = server.map(|server| &*server.0);
            run::run(&copy, arguments, (limit, folder))
        };
        let said = confirmed(run, &program.arguments);
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

/// What a program says. A test that fails has to fail again, alone, to pass alone without the change each time, and then to fail; a program that does not end
/// has not to end again, and to pass without it: a failure that has to do with the load of the machine, or with chance, says nothing of
/// the change. Then the other tests have to be run as well.
fn confirmed(
    mut run: impl FnMut(bool, &[String]) -> Result<Verdict>,
    arguments: &[String],
) -> Result<Verdict> {
    let mut arguments = arguments.to_vec();
    let mut unsteady = None;
    loop {
        let mut verdict = run(true, &arguments)?;
        if let Verdict::Stuck(how) = verdict {
            verdict = run(true, &arguments)?;
            let unchanged = format!("a program ({how})");
            if matches!(verdict, Verdict::Stuck(_)) && run(false, &arguments)? != Verdict::Passed {
                return Ok(Verdict::Unsteady(unchanged));
            }
            unsteady = Some(unchanged);
        }
        let Verdict::Failed(test) = &verdict else {
            return Ok(match unsteady {
                Some(test) if verdict == Verdict::Passed => Verdict::Unsteady(test),
                _ => verdict,
            });
        };
        let alone = [test.clone(), "--exact".to_owned()];
        for _ in 0..TRIES {
            if run(true, &alone)? != Verdict::Passed {
                // As often as with the change: a test that fails now and then would be taken for one that notices it.
                let mut passes = 0;
                while passes < TRIES && run(false, &alone)? == Verdict::Passed {
                    passes += 1;
                }
                // And once more: it is with the change that it fails.
                if passes == TRIES && run(true, &alone)? != Verdict::Passed {
                    return Ok(verdict);
                }
                break;
            }
        }
        arguments.extend(["--skip".to_owned(), test.clone()]);
        unsteady = Some(test.clone());
    }
}

/// Some of all changes, by the seed, and how many there are for which there is no room.
fn choose(settings: &Settings) -> Result<(Vec<(Source, Mutation)>, usize)> {
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
    let found = all.len();
    all.retain(|(_, mutation)| mutation.fits());
    let unfit = found - all.len();
    if all.is_empty() {
        return Err("no file has such a change: see --list without --file and --kind".into());
    }
    if settings.count > 0 {
        fastrand::Rng::with_seed(settings.seed).shuffle(&mut all);
        all.truncate(settings.count);
    }
    Ok((all, unfit))
}

fn tell(outcome: &str, source: &Source, mutation: &Mutation) {
    let place = format!("{}:{}", source.path, mutation.line);
    println!("{place} {} {outcome}", mutation.kind);
    let [old, new] = [&mutation.old, &mutation.new].map(|text| source::in_one_line(text));
    println!("  - {old}\n  + {new}");
}

#[cfg(test)]
mod cases {
    use super::*;

    #[test]
    fn nothing_is_not_enough() {
        let rate = |killed, survived| {
            let tally = Tally {
                killed,
                survived,
                ..Tally::default()
            };
            tally.rate()
        };
        assert!(is_enough(rate(4, 1), 80));
        assert!(!is_enough(rate(3, 1), 80));
        assert!(!is_enough(rate(0, 0), 80));
        assert!(is_enough(rate(0, 0), 0));
    }

    #[test]
    fn what_fails_is_run_again() {
        let said = |verdicts: &[Verdict]| {
            let mut verdicts = verdicts.iter().cloned();
            let said = confirmed(|_, _| Ok(verdicts.next().unwrap()), &[]).unwrap();
            assert_eq!(verdicts.next(), None);
            said
        };
        let failed = || Verdict::Failed("a".to_owned());
        let (passed, stuck) = (Verdict::Passed, Verdict::Stuck("not in time"));
        let passes = || [vec![passed.clone(); TRIES], vec![failed()]].concat();
        assert_eq!(
            said(&[vec![failed(), failed()], passes()].concat()),
            failed()
        );
        // It fails without the change as well, at first or now and then.
        for mut without in [vec![], vec![passed.clone(); 2]] {
            without.splice(0..0, [failed(), failed()]);
            without.extend([failed(), passed.clone()]);
            assert_eq!(said(&without), Verdict::Unsteady("a".to_owned()));
        }
        // And it passes with it.
        let chance = [vec![failed(), failed()], vec![passed.clone(); TRIES + 2]].concat();
        assert_eq!(said(&chance), Verdict::Unsteady("a".to_owned()));
        let steady = [failed(), passed.clone(), passed.clone(), passed.clone()];
        let once = said(&[&steady[..], std::slice::from_ref(&passed)].concat());
        assert_eq!(once, Verdict::Unsteady("a".to_owned()));
        assert_eq!(said(&[stuck.clone(), stuck.clone(), passed.clone()]), stuck);
        let always = said(&[stuck.clone(), stuck.clone(), stuck.clone()]);
        assert!(matches!(always, Verdict::Unsteady(_)), "{always:?}");
        let slow = [vec![stuck.clone(), failed(), failed()], passes()].concat();
        assert_eq!(said(&slow), failed());
        let once = said(&[stuck, passed]);
        assert!(matches!(once, Verdict::Unsteady(_)), "{once:?}");
    }

    /// An entry excuses the change that it has, and no other of the line.
    #[test]
    fn an_entry_excuses_one_change() {
        let source = Source {
            path: "a.sql".to_owned(),
            text: "SELECT 1\n WHERE a < b\n ORDER BY a\n".to_owned(),
            functions: Vec::new(),
        };
        let list = "- `a.sql` comparison `WHERE a < b` becomes `WHERE a <= b`: as here.\n\
                    - `a.sql` order `ORDER BY a` becomes nothing: as there.\n";
        let all = source.mutations();
        let explained = all
            .iter()
            .filter(|it| source::is_explained(list, &source, it));
        let new: Vec<_> = explained.map(|it| it.new.trim()).collect();
        assert_eq!(new, ["WHERE a <= b", ""]);
        assert!(all.len() > 3);
    }
}
