//! Known and random input for what reads the input of others: rows, texts, times and limits.
//!
//! Each property runs on its known values and on some hundred random ones with the other tests, and for a time with
//! `make fuzz`. What failed once is a known value, or a test of its own beside what was mended.

#[cfg(feature = "tower")]
mod addresses;
mod batches;
mod limits;
mod options;
mod rows;
mod texts;
#[cfg(feature = "cron")]
mod times;

use lockapi_fuzz::check;

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
