//! Whole programs with the real engine, a server and a network that fail by seed, in virtual time, and all of a seed
//! in one thread: `simulate --help`.

mod history;
mod judges;
mod network;
mod plan;
mod programs;
mod runtime;
mod server;
mod simulation;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::num::NonZero;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lexopt::prelude::*;

use crate::plan::{Fault, Plan};
use crate::simulation::{Outcome, simulate};

const HELP: &str = "\
Runs programs on a server and a network that fail by seed, and checks every answer.

    simulate [--seeds N] [--first N]     runs N seeds (1,000 unless set), from the first on
    --every N                            one seed of N: with 61, seeds whose plans have the same few kinds of tasks
    --small                              in small programs, which take a twentieth of the time
    simulate --seed N                    runs one seed, and tells what happened
        [--programs N] [--tasks N] [--time MS] [--without NAME,NAME]
                                         with less in it than the seed has
    --threads N                          so many seeds at the same time (one a processor unless set)
    --ids                                ids alone, as many as can be had, by the million
    --panics                             prints panics with their place
    --twice                              runs each seed twice, and compares

Exit status: 0 when all promises were kept, 1 when one was broken, 2 for bad arguments.";

#[expect(clippy::struct_excessive_bools, reason = "each is an option")]
struct Args {
    first: u64,
    seeds: u64,
    every: u64,
    threads: usize,
    one: Option<Plan>,
    twice: bool,
    panics: bool,
    small: bool,
    ids: bool,
}

impl Args {
    fn plan(&self, seed: u64) -> Plan {
        let mut plan = Plan::new(seed);
        if self.small {
            plan = plan.small();
        }
        if self.ids {
            plan = plan.of_ids();
        }
        plan
    }
}

fn main() -> ExitCode {
    let args = match parse() {
        Ok(Some(args)) => args,
        Ok(None) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("simulate: {error}");
            return ExitCode::from(2);
        }
    };
    if !args.panics {
        // Handlers panic, and any other panic is a broken promise and told as one.
        std::panic::set_hook(Box::new(|_| {}));
    }
    match &args.one {
        Some(plan) => one(plan, args.twice),
        None => many(&args),
    }
}

fn parse() -> Result<Option<Args>, lexopt::Error> {
    let mut args = Args {
        first: 1,
        seeds: 1_000,
        every: 1,
        threads: thread::available_parallelism().map_or(1, NonZero::get),
        one: None,
        twice: false,
        panics: false,
        small: false,
        ids: false,
    };
    let (mut seed, mut many, mut less) = (None, None, Vec::new());
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Long(option @ ("first" | "seeds" | "every" | "threads")) => {
                let option = format!("--{option}");
                let number: u64 = number(&option, &parser.value()?.string()?)?;
                match &*option {
                    "--first" => args.first = number,
                    _ if number == 0 => {
                        return Err(format!("{option} 0; allowed is 1 and more").into());
                    }
                    "--seeds" => args.seeds = number,
                    "--every" => args.every = number,
                    _ => args.threads = usize::try_from(number).unwrap_or(usize::MAX).min(1024),
                }
                many = Some(option);
            }
            Long("seed") => seed = Some(number("--seed", &parser.value()?.string()?)?),
            Long("panics") => args.panics = true,
            Long("twice") => args.twice = true,
            Long("small") => args.small = true,
            Long("ids") => args.ids = true,
            Long(option @ ("programs" | "tasks" | "time" | "without")) => {
                let option = format!("--{option}");
                less.push((option, parser.value()?.string()?));
            }
            Short('h') | Long("help") => return Ok(None),
            _ => return Err(arg.unexpected()),
        }
    }
    let (first, seeds, every) = (args.first, args.seeds, args.every);
    let end = seeds
        .checked_mul(every)
        .and_then(|all| first.checked_add(all));
    if end.is_none_or(|end| end > LAST) {
        let problem = format!(
            "--first {first} --seeds {seeds} --every {every}; allowed are seeds up to {LAST}"
        );
        return Err(problem.into());
    }
    let Some(seed) = seed else {
        return match less.first() {
            Some((option, _)) => Err(format!("{option} goes with --seed").into()),
            None => Ok(Some(args)),
        };
    };
    if let Some(option) = many {
        return Err(format!("{option} does not go with --seed").into());
    }
    let mut plan = args.plan(seed);
    for (option, value) in less {
        plan = with_less(plan, &option, &value)?;
    }
    args.one = Some(plan);
    Ok(Some(args))
}

/// No seed is larger, so that there are numbers behind the last one.
const LAST: u64 = u64::MAX >> 1;

fn number<T: FromStr<Err: Display>>(option: &str, value: &str) -> Result<T, String> {
    let parsed = value.parse::<T>();
    parsed.map_err(|error| format!("{option} {value}: {error}"))
}

/// A plan with less in it than its seed has.
fn with_less(mut plan: Plan, option: &str, value: &str) -> Result<Plan, String> {
    match option {
        "--programs" => plan.programs = number(option, value)?,
        "--tasks" => plan.tasks = number(option, value)?,
        "--time" => plan.time = Duration::from_millis(number(option, value)?),
        _ => {
            for name in value.split(',') {
                let known = Fault::ALL.map(Fault::name).join(", ");
                let kinds = plan::KINDS.join(", ");
                let unknown = || {
                    format!(
                        "--without {name}; allowed are the faults {known}, and the kinds of tasks {kinds}"
                    )
                };
                plan = plan.without_named(name).ok_or_else(unknown)?;
            }
        }
    }
    if plan.programs == 0 || plan.tasks == 0 || plan.time.is_zero() {
        return Err(format!("{option} {value}; allowed is 1 and more"));
    }
    Ok(plan)
}

/// Runs one plan, and tells what happened.
fn one(plan: &Plan, twice: bool) -> ExitCode {
    println!("{plan:#?}");
    let outcome = simulate(plan);
    println!("{outcome:#?}");
    if twice && simulate(plan) != outcome {
        println!("it is not the same the second time");
        return ExitCode::FAILURE;
    }
    match &outcome.violation {
        Some(violation) => {
            println!("{violation}");
            ExitCode::FAILURE
        }
        None if !outcome.answers.contains_key("audit") => {
            println!("it did not end with a look at everything");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}

/// What went wrong with a seed.
enum Wrong {
    Broken(Box<Plan>, runtime::Violation),
    NotTheSame,
}

/// Runs seeds in some threads, each in one. The first that goes wrong is told, whoever has found it.
fn many(args: &Args) -> ExitCode {
    let begun = Instant::now();
    let (next, total) = (AtomicU64::new(0), Mutex::<Totals>::default());
    let wrong = Mutex::<BTreeMap<u64, Wrong>>::default();
    let run = || {
        while lock(&wrong).is_empty() {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= args.seeds {
                break;
            }
            let seed = args.first + number * args.every;
            let plan = args.plan(seed);
            let outcome = simulate(&plan);
            if args.twice && simulate(&plan) != outcome {
                lock(&wrong).insert(seed, Wrong::NotTheSame);
            } else if let Some(violation) = outcome.violation {
                lock(&wrong).insert(seed, Wrong::Broken(Box::new(plan), violation));
            } else {
                lock(&total).add(&outcome);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..args.threads {
            scope.spawn(run);
        }
    });
    match lock(&wrong).pop_first() {
        Some((seed, Wrong::NotTheSame)) => {
            println!("seed {seed} is not the same the second time");
            return ExitCode::FAILURE;
        }
        Some((_, Wrong::Broken(plan, violation))) => {
            println!("{violation}\nsimulate {plan}\nMaking it smaller ...");
            let (plan, violation) = shrink(*plan, violation.promise);
            println!("{violation}\nsimulate {plan}");
            return ExitCode::FAILURE;
        }
        None => {}
    }
    let total = lock(&total);
    total.print(args, begun.elapsed());
    let unseen = LOOKED_AT
        .iter()
        .find(|it| total.looks.get(**it).is_none_or(|times| *times == 0));
    if let Some(promise) = unseen.filter(|_| args.seeds >= MANY && !args.ids) {
        println!("no seed has looked at a promise: {promise}");
        return ExitCode::FAILURE;
    }
    let audits = total.answers.get("audit").copied().unwrap_or(0);
    if audits != args.seeds {
        println!(
            "only {audits} of {} ended with a look at everything",
            args.seeds
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The smallest plan that was found which breaks the same promise.
fn shrink(mut plan: Plan, promise: &str) -> (Plan, runtime::Violation) {
    let mut violation = None;
    loop {
        let broken = plan.smaller().into_iter().find_map(|smaller| {
            let broken = simulate(&smaller).violation?;
            (broken.promise == promise).then_some((smaller, broken))
        });
        let Some((smaller, broken)) = broken else {
            break;
        };
        plan = smaller;
        violation = Some(broken);
    }
    let violation = violation.or_else(|| simulate(&plan).violation);
    (plan, violation.expect("what was broken before"))
}

/// So many seeds look at all promises.
const MANY: u64 = 1_000;

/// Promises that only some plans look at, each where it might be broken; those that all plans look at are not listed.
const LOOKED_AT: [&str; 81] = [
    "a call ends within twice the time limit, and at once where nothing fails",
    "a delivery that is not the latest changes nothing",
    "a due time has one job",
    "a job has one worker",
    "a job that is done is kept",
    "a job that runs is not changed",
    "a key always refers to the job of its first push",
    "a key that nobody has is free",
    "a lease ends with its time",
    "a lease is kept from others for its minimum hold",
    "a queue that is drained delivers nothing",
    "a run that lasts too long is lost",
    "a stale holder writes nothing",
    "a task is due when its expression says",
    "a task is run at once",
    "a task recurs as it was set",
    "a task that was fired has a job",
    "a task that was removed is not there",
    "a wait ends with its time",
    "a wait is not given up before its time",
    "a worker counts what it has done",
    "all jobs of a queue are counted",
    "decisions are in the order of their requests",
    "everybody has a turn",
    "groups keep their limit and order",
    "higher priorities are claimed first",
    "ids are not ahead of the clock",
    "ids of a number grow",
    "limits hold",
    "limits refuse only what is not there",
    "no group is passed over",
    "no job is delivered before its time",
    "no more of a group are admitted than its limit",
    "no more of a queue run than its limit",
    "no run is skipped without a cause",
    "nothing is cancelled of whoever waits for it",
    "nothing of a disabled task is fired",
    "nothing of a drained queue runs",
    "nothing of a paused queue is delivered",
    "one job has a unique key",
    "permits that are given back are there",
    "queues keep their limit",
    "rates of groups hold",
    "rates of queues hold",
    "runs do not overlap",
    "tasks are fired when they are due",
    "the key of a job that is done is free",
    "the log has what became of a run",
    "the policy decides in an outage",
    "what a handler has ended is done, or goes back",
    "what a holder stored is read",
    "what did not happen has no effect",
    "what has expired is not delivered",
    "what is claimed is begun, or goes back",
    "what is due goes to whoever waits",
    "what is notified is acted on before the next poll",
    "what is purged is gone",
    "what is released or snoozed is no attempt, and all else is",
    "what is resumed is delivered",
    "what is taken for a call that was left is given back",
    "what is taken for nobody is given back",
    "what is there can be cancelled",
    "what is told is true",
    "what is too late is skipped",
    "what nobody has can be had",
    "what remains of a lease is told",
    "what runs is not purged",
    "what was due of a disabled task is not caught up",
    "what was given back is not used",
    "what was missed is not caught up",
    "what was pushed is there",
    "who does not wait is answered at once",
    "who is refused is told when a permit is there",
    "who is told of a deadlock waits for himself",
    "who shares lets those in who wait elsewhere",
    "who shares waits for nobody who shares",
    "who waits for a result is told in time",
    "who waits for permits is admitted",
    "who waits is served in the order of arrival",
    "whoever watches an election sees each leader once",
    "windows that slide hold",
];

/// What all seeds did together.
#[derive(Default)]
struct Totals {
    statements: u64,
    steps: u64,
    ids: u64,
    time: Duration,
    answers: BTreeMap<&'static str, u64>,
    errors: BTreeMap<String, u64>,
    looks: BTreeMap<&'static str, u64>,
    faults: BTreeMap<&'static str, u64>,
}

impl Totals {
    fn add(&mut self, outcome: &Outcome) {
        self.statements += outcome.statements;
        self.steps += outcome.steps;
        self.ids += outcome.ids;
        self.time += outcome.time;
        for (name, times) in &outcome.answers {
            *self.answers.entry(name).or_default() += times;
        }
        for (promise, times) in &outcome.looks {
            *self.looks.entry(promise).or_default() += times;
        }
        for (name, times) in &outcome.errors {
            *self.errors.entry(name.clone()).or_default() += times;
        }
        for (name, times) in &outcome.faults {
            *self.faults.entry(name).or_default() += times;
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn print(&self, args: &Args, took: Duration) {
        let answers: u64 = self.answers.values().sum();
        println!(
            "{} seeds from {}: {answers} answers checked, {} statements, {} steps in {:.1} h of virtual time; \
             {:.1} s in {} threads, {:.0} statements a second",
            args.seeds,
            args.first,
            self.statements,
            self.steps,
            self.time.as_secs_f64() / 3600.0,
            took.as_secs_f64(),
            args.threads,
            self.statements as f64 / took.as_secs_f64(),
        );
        println!("ids:     {}", self.ids);
        println!("answers: {:?}", self.answers);
        println!("errors:  {:?}", self.errors);
        println!("faults:  {:?}", self.faults);
        println!("looks:   {:?}", self.looks);
        let idle: Vec<_> = Fault::ALL
            .map(Fault::name)
            .into_iter()
            .filter(|it| !self.faults.contains_key(it))
            .collect();
        if !idle.is_empty() {
            println!("without effect: {}", idle.join(", "));
        }
    }
}
