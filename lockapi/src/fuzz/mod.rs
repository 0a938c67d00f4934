//! Random input for what reads the input of others: rows, texts, times and limits.
//!
//! Each property runs on some hundred values with the other tests, and on as many as `PROPTEST_CASES` says with
//! `make fuzz`. What failed once is a test of its own, beside what was mended.

mod batches;
mod limits;
mod options;
mod rows;
mod texts;
#[cfg(feature = "cron")]
mod times;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};

use crate::{ErrorKind, Result};

/// What is refused is `Invalid`, and the message says what is allowed instead.
fn is_refused<T>(checked: &Result<T>) -> bool {
    checked.as_ref().is_err_and(|error| {
        let told = error.to_string();
        let explained =
            told.contains("; allowed ") || told.contains("which PostgreSQL cannot store");
        error.kind() == ErrorKind::Invalid && explained
    })
}

/// Runs a property on random values, and reports the smallest that it fails on.
fn check<S: Strategy>(values: &S, property: impl Fn(S::Value) -> TestCaseResult) {
    let config = Config {
        failure_persistence: None,
        max_shrink_iters: 100_000,
        ..Config::default()
    };
    if let Err(failure) = TestRunner::new(config).run(values, property) {
        panic!("{failure}");
    }
}
