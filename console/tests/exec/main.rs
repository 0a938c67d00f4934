//! `lockapi exec` with real children: which statuses it answers, what it passes on, and that nothing outlives a hold.
//!
//! `LOCKAPI_EXEC_ROUNDS=1000 cargo test -p lockapi-console --test exec -- outlives` does a thousand rounds.

#[path = "../common/mod.rs"]
mod common;

mod beat;
mod outlives;
mod relay;
mod statuses;
mod terminal;

use libtest_mimic::{Arguments, Trial};

fn main() {
    // This program is also what runs under `lockapi exec`.
    beat::play_if_asked();
    let arguments = Arguments::from_args();
    let mut trials = outlives::trials();
    trials.extend(statuses::trials());
    trials.extend(terminal::trials());
    libtest_mimic::run(&arguments, trials).exit();
}

/// A trial that fails where the function panics.
fn trial(name: &'static str, test: fn()) -> Trial {
    Trial::test(name, move || {
        test();
        Ok(())
    })
}
