//! Programs of all libraries on a real server, with real faults, and checked histories: `torture --help`.

mod args;
mod audit;
mod conductor;
mod crew;
mod disk;
mod guard;
mod history;
mod log;
mod plan;
mod pooler;
mod programs;
mod proxy;
mod report;
mod round;
mod screen;
mod server;
mod wire;

use std::process::ExitCode;
use std::time::Instant;

use args::{Command, Settings};
use report::Outcome;
use screen::Screen;

/// What goes wrong outside of what is tested ends the program with a message.
type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    let outcome = match args::parse() {
        Ok(Command::Help) => {
            print!("{}", args::HELP);
            return ExitCode::SUCCESS;
        }
        Ok(Command::Program(program)) => programs::run(&program).map(|()| Outcome::Passed),
        Ok(Command::Run(settings)) => {
            disk::set_apart();
            rounds(&settings)
        }
        Err(error) => {
            eprintln!("torture: {error}\nTry --help.");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(Outcome::Passed) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::FAILURE,
        Ok(Outcome::Inconclusive) => ExitCode::from(4),
        Ok(Outcome::NotFound) => ExitCode::from(5),
        Err(error) => {
            eprintln!("torture: {error}");
            ExitCode::from(3)
        }
    }
}

/// Runs rounds with consecutive seeds until the time is over; answers the worst that became of one.
fn rounds(settings: &Settings) -> Result<Outcome> {
    let begun = Instant::now();
    let screen = Screen::new();
    let (mut rounds, mut calls, mut applied, mut violations) = (0_u64, 0, 0, 0);
    let (mut failed, mut inconclusive, mut missed) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        let seed = settings.seed.wrapping_add(rounds);
        let verdict = match round::run(settings, seed, &screen) {
            Ok(verdict) => verdict,
            Err(error) => {
                if rounds > 0 {
                    screen.line(&format!("{rounds} rounds before; failed: {failed:?}"));
                }
                return Err(error);
            }
        };
        rounds += 1;
        calls += verdict.calls;
        applied += verdict.applied;
        violations += verdict.violations;
        match verdict.outcome {
            Outcome::Passed => {}
            Outcome::Failed => failed.push(seed),
            Outcome::Inconclusive => inconclusive.push(seed),
            Outcome::NotFound => missed.push(seed),
        }
        let is_over = |total| begun.elapsed() >= total;
        if settings.total.is_none_or(is_over) {
            break;
        }
    }
    if rounds > 1 {
        screen.line(&format!(
            "{rounds} rounds: {calls} calls, {applied} faults, {violations} violations; failed: {failed:?}; inconclusive: {inconclusive:?}; controls not found: {missed:?}"
        ));
    }
    Ok(if !missed.is_empty() {
        Outcome::NotFound
    } else if !failed.is_empty() {
        Outcome::Failed
    } else if !inconclusive.is_empty() {
        Outcome::Inconclusive
    } else {
        Outcome::Passed
    })
}
