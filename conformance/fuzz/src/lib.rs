//! Properties of decoders and parsers, on known values and on random ones.
//!
//! The known values come first: those that once failed, and those that are hard. Random values are made in rounds, each
//! from a seed. With the other tests there are a few rounds, the same ones each time; `make fuzz` goes on until a time is
//! over:
//!
//! | Variable | Meaning |
//! |---|---|
//! | `LOCKAPI_FUZZ_SECONDS` | how long each property runs on random values |
//! | `LOCKAPI_FUZZ_FIRST` | the seed of the first of these rounds, from which the others count on; if unset, each has a random one |
//! | `LOCKAPI_FUZZ_SEED` | the seed of the only round, which a failure has told |
//! | `LOCKAPI_FUZZ_REPORT` | a file that gets a line for each property, with the number of values |

use std::cell::Cell;
use std::env;
use std::fmt::Debug;
use std::fs::OpenOptions;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use proptest::strategy::{Just, Strategy};
use proptest::test_runner::{Config, Reason, RngSeed, TestCaseError, TestCaseResult, TestRunner};

mod mutated;

pub use mutated::{bytes_like, mutated, text_like};

/// How many values are made from a seed.
const ROUND: u32 = 32;
/// How many rounds there are with the other tests.
const ROUNDS: u64 = 8;

/// Which rounds there are.
#[derive(Clone, Copy, Debug)]
enum Plan {
    Few,
    /// For a time, from a seed on or from random ones.
    For(Duration, Option<u64>),
    Only(u64),
}

impl Plan {
    fn told() -> Self {
        if let Some(seed) = variable("LOCKAPI_FUZZ_SEED") {
            return Self::Only(seed);
        }
        match variable("LOCKAPI_FUZZ_SECONDS").map(Duration::from_secs) {
            Some(time) => Self::For(time, variable("LOCKAPI_FUZZ_FIRST")),
            None => Self::Few,
        }
    }

    /// When the last round ends.
    fn end(self) -> Option<Instant> {
        match self {
            Self::For(time, _) => Some(Instant::now() + time),
            Self::Few | Self::Only(_) => None,
        }
    }

    fn seeds(self, is_over: impl Fn() -> bool + 'static) -> Box<dyn Iterator<Item = u64>> {
        match self {
            Self::Few => Box::new(0..ROUNDS),
            Self::For(_, Some(first)) => Box::new((first..).take_while(move |_| !is_over())),
            Self::For(_, None) => {
                let random = || RandomState::new().hash_one(());
                Box::new(std::iter::repeat_with(random).take_while(move |_| !is_over()))
            }
            Self::Only(seed) => Box::new(std::iter::once(seed)),
        }
    }
}

/// A variable that is empty is none.
fn variable<T: FromStr<Err: Debug>>(name: &str) -> Option<T> {
    let text = env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(
        text.parse()
            .unwrap_or_else(|error| panic!("{name}={text}: {error:?}")),
    )
}

/// Runs a property on the known values, and on random ones. The thread has to have the name of the test.
///
/// # Panics
/// Where it fails, with the smallest value that it was found to fail on, and with the command that repeats it; and where
/// no random value was suitable.
pub fn check<S>(
    known: impl IntoIterator<Item = S::Value>,
    values: &S,
    property: impl Fn(S::Value) -> TestCaseResult,
) where
    S: Strategy,
    S::Value: Clone,
{
    let thread = thread::current();
    let name = thread.name().unwrap_or("a property");
    match run(name, Plan::told(), known, values, property) {
        Ok(report) => tell(&report),
        Err(failure) => panic!("{failure}"),
    }
}

fn tell(report: &str) {
    let Some(path) = env::var_os("LOCKAPI_FUZZ_REPORT") else {
        return;
    };
    // One write: others add to it.
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let written = file.and_then(|mut file| file.write_all(report.as_bytes()));
    written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn config(seed: u64) -> Config {
    Config {
        cases: ROUND,
        failure_persistence: None,
        max_shrink_iters: 100_000,
        rng_seed: RngSeed::Fixed(seed),
        ..Config::default()
    }
}

/// Answers a line with the number of values.
fn run<S>(
    name: &str,
    plan: Plan,
    known: impl IntoIterator<Item = S::Value>,
    values: &S,
    property: impl Fn(S::Value) -> TestCaseResult,
) -> Result<String, Reason>
where
    S: Strategy,
    S::Value: Clone,
{
    let mut known_values = 0_u64;
    for value in known {
        let mut runner = TestRunner::new(config(0));
        let tree = Just(value).new_tree(&mut runner)?;
        known_values += 1;
        if let Err(failure) = runner.run_one(tree, &property) {
            return Err(format!("{name}, on a value that is known: {failure}").into());
        }
    }
    let end = plan.end();
    let is_over = move || end.is_some_and(|end| Instant::now() >= end);
    let (ran, failed) = (Cell::new(0_u64), Cell::new(false));
    let counted = |value| {
        // A round ends in time, but what has failed is made smaller.
        if is_over() && !failed.get() {
            return Ok(());
        }
        // It may panic.
        let before = failed.replace(true);
        let result = property(value);
        if !matches!(result, Err(TestCaseError::Fail(_))) {
            failed.set(before);
            ran.set(ran.get() + u64::from(result.is_ok()));
        }
        result
    };
    for seed in plan.seeds(is_over) {
        match TestRunner::new(config(seed)).run(values, counted) {
            Ok(()) => {}
            Err(failure) => {
                return Err(format!(
                    "{name}: {failure}\nRepeat it with: make fuzz SEED={seed} ONLY={name}"
                )
                .into());
            }
        }
    }
    if ran.get() == 0 {
        return Err(format!("{name}: no random value was suitable").into());
    }
    let line = format!(
        "{:>9} random and {known_values:>3} known values  {name}\n",
        ran.get()
    );
    Ok(line)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use proptest::prelude::any;
    use proptest::prop_assert;

    use super::*;

    fn message(ran: Result<String, Reason>) -> String {
        ran.expect_err("it fails").to_string()
    }

    #[test]
    fn a_failure_is_repeated_by_its_seed() {
        let run = |plan| {
            let first = Cell::new(None);
            let ran = run("property", plan, [], &(0..u64::MAX), |number| {
                if number >= 1000 && first.get().is_none() {
                    first.set(Some(number));
                }
                prop_assert!(number < 1000);
                Ok(())
            });
            (first.get(), message(ran))
        };
        let (first, told) = run(Plan::Few);
        assert!(told.contains("minimal failing input: 1000"), "{told}");
        let (_, seed) = told.split_once("SEED=").expect("a seed");
        let (seed, rest) = seed.split_once(' ').expect("a name");
        assert_eq!(rest, "ONLY=property");
        let seed = seed.parse().expect("a number");
        assert_eq!(run(Plan::Only(seed)), (first, told));
    }

    #[test]
    fn rounds_are_repeated_from_their_first() {
        let seeds = |plan: Plan| plan.seeds(|| false).take(3).collect::<Vec<_>>();
        assert_eq!(seeds(Plan::Few), [0, 1, 2]);
        assert_eq!(seeds(Plan::For(Duration::MAX, Some(7))), [7, 8, 9]);
        assert_ne!(
            seeds(Plan::For(Duration::MAX, None)),
            seeds(Plan::For(Duration::MAX, None))
        );
    }

    #[test]
    fn what_panics_fails_and_is_made_smaller() {
        let long = Plan::For(Duration::from_secs(60), None);
        let ran = run("property", long, [], &any::<u8>(), |number| {
            assert!(number < 7);
            Ok(())
        });
        assert!(message(ran).contains("minimal failing input: 7"));
    }

    #[test]
    fn it_ends_in_time() {
        let begun = Instant::now();
        let short = Plan::For(Duration::from_millis(200), Some(1));
        let ran = run("property", short, [1], &any::<u8>(), |_| {
            thread::sleep(Duration::from_millis(20));
            Ok(())
        });
        let told = ran.expect("it holds");
        assert!(told.contains("and   1 known"), "{told}");
        assert!(begun.elapsed() >= Duration::from_millis(200));
        let words = || told.split_whitespace();
        let values: u32 = words().next().expect("a number").parse().expect("a number");
        assert!((1..=10).contains(&values), "{told}");
    }

    #[test]
    fn known_values_come_first() {
        let seen = RefCell::new(Vec::new());
        let ran = run("property", Plan::Few, [3, 5], &Just(1), |number| {
            seen.borrow_mut().push(number);
            prop_assert!(number != 5);
            Ok(())
        });
        assert!(message(ran).contains("on a value that is known"));
        assert_eq!(*seen.borrow(), [3, 5]);
    }

    #[test]
    fn a_property_of_no_value_fails() {
        let none = |_| Err(TestCaseError::reject("none"));
        assert!(run("property", Plan::Few, [], &any::<u8>(), none).is_err());
    }
}
