//! Coordination for programs that already have PostgreSQL.
//!
//! A program picks the crate that matches its database library, such as `lockapi-sqlx`, and gets the
//! same primitives with the same semantics in the same tables; tests use [`memory`] instead:
//!
//! - [`Mutex`]: a lock that lasts as long as a connection does; [`RwLock`] is the one that readers share;
//! - [`Lease`]: a lock that expires unless it is renewed; based on it, [`Semaphore`], which several
//!   callers hold at the same time, and [`Election`], whose holder is visible to all;
//! - [`RateLimiter`]: a limit on how often something is done;
//! - [`Idempotency`](idempotency::Idempotency): a request that is sent again has one effect and one answer;
//! - [`Queue`]: jobs that are run later, by a [`worker`] in any process;
//! - [`Scheduler`]: recurring tasks;
//! - [`IdGen`]: ids that are unique across processes, generated in memory.
//!
//! ```
//! use std::time::Duration;
//! use lockapi::lease::LeaseOptions;
//!
//! # async fn example() -> lockapi::Result<()> {
//! let backend = lockapi::memory::Database::new().connect().await?;
//! let nightly = backend.lease("nightly-report", LeaseOptions::new(Duration::from_secs(30)))?;
//! let ran = nightly.run_exclusive(async |fence| Ok::<_, lockapi::Error>(fence.token())).await?;
//! assert!(ran.is_some(), "nobody else was at it");
//! # Ok(())
//! # }
//! # lockapi::blocking::block_on(example()).unwrap();
//! ```
//!
//! With the features `tracing` and `metrics` the engine reports waits and holds, with warnings
//! after [`BackendOptions::warn_waited`] and [`warn_held`](BackendOptions::warn_held), contention,
//! renewals, losses, refusals, jobs, queues and batches; [`telemetry`] lists all spans, events and
//! metrics. With the feature `opentelemetry` traces go [through queues](telemetry#traces-through-queues).
//! Without them nothing is reported; nothing else changes.
//!
//! Programs without an async runtime use [`blocking`]. Backends implement [`driver::Connector`],
//! which [`engine::start`] turns into a [`Backend`].

// Operations are public for the conformance suite alone.
#![cfg_attr(not(feature = "suite"), allow(unreachable_pub))]

pub mod admin;
pub mod blocking;
pub mod driver;
pub mod election;
pub mod engine;
pub mod id;
pub mod idempotency;
pub mod lease;
pub mod limit;
pub mod memory;
pub mod migrate;
pub mod mutex;
pub mod queue;
pub mod rights;
pub mod schedule;
pub mod semaphore;
#[cfg(feature = "suite")]
#[doc(hidden)]
pub mod suite;
pub mod table;
pub mod telemetry;
#[cfg(feature = "tower")]
pub mod tower;
pub mod versioned;
pub mod worker;

mod backend;
mod error;
mod failure;
mod fence;
#[cfg(test)]
mod fuzz;
mod hold;
mod key;
mod random;
mod stop;
mod sweep;
mod sync;
mod wait;

pub use backend::{Backend, Capabilities};
pub use election::{Election, Observer};
pub use engine::BackendOptions;
pub use error::{Error, ErrorKind, Failure, Result};
pub use failure::{Report, Severity};
pub use fence::Fence;
pub use id::IdGen;
pub use key::{Key, LockId, MAX_NAME_BYTES, advisory_key};
pub use lease::{Lease, LeaseGuard};
pub use limit::{Permits, RateLimiter, Reservation};
pub use migrate::{AppliedMigration, MIGRATIONS, Migration};
pub use mutex::{
    LockOwner, Mutex, MutexGuard, MutexSet, MutexSetGuard, ReadGuard, RwLock, Striped,
};
pub use queue::Queue;
pub use schedule::Scheduler;
pub use semaphore::Semaphore;
pub use stop::Stop;
