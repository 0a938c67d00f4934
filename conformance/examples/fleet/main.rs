//! A fleet of workers that share recurring tasks, and a program that disturbs them.
//!
//! ```text
//! cargo run --release -p lockapi-conformance --example fleet -- --help
//! ```
//!
//! Every worker runs the same [`Scheduler`](lockapi::Scheduler) and works on the jobs of its
//! [`Queue`](lockapi::Queue). What a run writes is written in the transaction that completes its
//! [`Delivery`](lockapi::queue::Delivery). What a worker does is in `worker/`, once async and once on plain threads; how it does it with each
//! database library is in `library/`. Meanwhile workers are killed and stopped, and their database
//! sessions ended (`disturb.rs`). In the end the log is audited (`postgres/audit.sql`): every time
//! that a task was due must have been run to its end once, by whomever.

mod args;
mod audit;
mod conduct;
mod disturb;
mod library;
mod memory;
mod plan;
mod postgres;
mod store;
mod view;
mod watch;
mod worker;

use std::process::ExitCode;

use args::{Backend, Command};
use conduct::Verdict;
use worker::Node;

/// What goes wrong outside of the workers ends the program with a message.
type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    let outcome = match args::parse(std::env::args_os()) {
        Ok(Command::Help) => {
            print!("{}", args::HELP);
            return ExitCode::SUCCESS;
        }
        Ok(Command::Worker {
            node,
            library,
            safety,
        }) => {
            return match library.work(Node::new(node.clone(), safety)) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("fleet: {node}: {error}");
                    ExitCode::from(3)
                }
            };
        }
        Ok(Command::Fleet(settings)) => match settings.backend {
            Backend::Libraries(libraries) => postgres::run(&settings, libraries),
            Backend::Memory => memory::run(&settings),
        },
        Err(error) => {
            eprintln!("fleet: {error}\nTry --help.");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(Verdict::Passed) => ExitCode::SUCCESS,
        Ok(Verdict::Failed) => ExitCode::FAILURE,
        Ok(Verdict::Interrupted) => {
            eprintln!("fleet: interrupted; the workers are stopped");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("fleet: {error}");
            ExitCode::from(3)
        }
    }
}
