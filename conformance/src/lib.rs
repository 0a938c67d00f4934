//! The suite that every lockapi backend passes.
//!
//! A case is one promise, such as `mutex::M02_second_holder_waits`. Every case runs on every
//! [`Subject`], through each [`Face`]: generic functions, `Arc<dyn Backend>`, and blocking calls.
//! No case knows which backend it runs on. What a subject cannot lend ([`Need`]) turns the cases
//! that need it into ignored ones, visibly; a server that is not there makes them fail.
//!
//! # Running it on your own backend
//! A test target without a harness (`harness = false` in `Cargo.toml`) mounts everything:
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! fn main() {
//!     conformance::run(&[Arc::new(conformance::Memory)]);
//! }
//! ```
//!
//! A backend on `PostgreSQL` implements [`Driver`], four short functions, and is mounted as
//! `Arc::new(Postgres::new(MyDriver))`; `tests/sqlx.rs` shows one. The suite brings its own server
//! ([`cluster`]), roles, databases, standby and proxy. Any other database implements [`Subject`]
//! and [`Fixture`].
//!
//! ```text
//! cargo nextest run -p conformance                      # everything
//! cargo nextest run -p conformance sqlx::dyn::lease     # a backend, a face, a module
//! cargo test -p conformance --test memory -- --list     # what there is
//! ```

#![forbid(unsafe_code)]

pub mod cluster;
pub mod differential;

mod cases;
mod child;
mod context;
mod face;
mod fixture;
mod harness;
mod memory;
mod patience;
mod postgres;
mod steps;

pub use face::Face;
pub use fixture::{Fixture, Locks, Need, Place, Problem, SECRET, Subject, Transaction};
pub use harness::{run, run_pairs};
pub use memory::Memory;
pub use postgres::{Driver, Postgres};
pub use steps::{BlockingTransaction, Name, Steps};

/// Compiles and runs what the README shows.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
