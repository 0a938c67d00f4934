//! Coordination on PostgreSQL for programs that use the blocking `postgres` crate.
//!
//! [`connect_url`] opens connections of its own, [`connect`] takes those of the program's `r2d2`
//! pool; both return a [`Backend`]. The primitives, their guarantees and their errors are described
//! in [`lockapi`]; programs without an async runtime use its [`blocking`](lockapi::blocking)
//! interface.
//!
//! ```no_run
//! use lockapi::blocking::Backend;
//!
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let backend = Backend::connect(lockapi_postgres::connect_url("postgres://localhost/app"))?;
//! backend.migrate()?;
//!
//! let guard = backend.mutex("reports/daily")?.lock()?;
//! println!("holder {}", guard.fence());
//! guard.unlock()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Connections
//! From a pool the backend takes at most 9 + [`BackendOptions::waiters`] connections: one for leases
//! and other tables, one for renewals, one for jobs, two for rate limits, one that holds the mutexes,
//! some that wait for mutexes, one that receives notifications while there are subscribers, and from
//! time to time one that deletes old rows. Each is taken when it is first needed, and most are kept;
//! two are taken for a moment when it connects, and one when a statement is cancelled. A connection
//! that is returned to the pool has its original settings, holds no lock and listens on no channel of
//! this library. If all connections of the pool are in use, the backend cannot replace one that broke:
//! with [`connect_manager`] or [`connect_url`] the backend opens connections of its own, and the
//! program's pool does not matter.
//!
//! # Threads
//! Each connection is used on a thread of the backend, so async programs can use the backend as
//! well: no call blocks a thread of theirs. One further thread watches the deadlines.
//!
//! # In your own transaction
//! Methods whose names end in `_in` take your client or transaction, block, and need no import:
//!
//! ```no_run
//! use std::time::Duration;
//! use lockapi::limit::PermitRequest;
//! use lockapi::queue::Job;
//! use lockapi::table::{TableMode, lock_table_in};
//! # fn example(
//! #     mut client: postgres::Client,
//! #     mutex: lockapi::blocking::Mutex,
//! #     limiter: lockapi::blocking::RateLimiter,
//! #     queue: lockapi::blocking::Queue,
//! #     delivery: lockapi::blocking::Delivery,
//! #     guard: lockapi::blocking::LeaseGuard,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let mut tx = client.transaction()?;
//! // A lock that commit or rollback releases.
//! if mutex.try_lock_in(&mut tx)? {
//!     tx.execute("UPDATE account SET balance = balance + 1", &[])?;
//! }
//! // `Lost` if another holder is possible by now: roll back.
//! guard.fence().check_in(&mut tx)?;
//! // The effects of a job, its completion, and the next job: all of them, or none.
//! tx.execute("UPDATE account SET welcomed = true", &[])?;
//! delivery.ack_in(&mut tx)?;
//! queue.push_in(&mut tx, &[Job::new("send-welcome", "ada")?])?;
//! if limiter.check_all_in(&mut tx, &[PermitRequest::new("mail:123")])?.is_allowed() {
//!     tx.execute("INSERT INTO mail (recipient) VALUES (123)", &[])?;
//! }
//! // Work that is done in the transaction that takes its job.
//! for job in queue.take_in(&mut tx, 10)? {
//!     tx.execute("INSERT INTO sent (name) VALUES ($1)", &[&job.name()])?;
//! }
//! lock_table_in(&mut tx, "orders", TableMode::Share, Duration::from_secs(5))?;
//! tx.commit()?;
//! # Ok(())
//! # }
//! ```

mod connector;
mod table;
mod transaction;
mod versioned;

use std::sync::Arc;

use lockapi::BackendOptions;
use lockapi::driver::{Connector, Hosts, Threaded, each_host};
use lockapi::engine::start;
use lockapi::{Backend, Result};
use lockapi_postgres_types::parse_config;
use postgres::{Client, Config, NoTls};
use r2d2::{ManageConnection, Pool};

pub use connector::Borrowed;
pub use table::{with_lock_timeout_in, with_priority_in};
pub use transaction::Postgres;
pub use versioned::{VersionedUpdate, is_conflict, transact};

use connector::{Opened, Pooled};

const NAME: &str = "sync";

/// Connects a backend that takes connections of the program's pool.
///
/// # Cancel safety
/// When dropped, the probe ends in the background and its connections are returned.
///
/// # Errors
/// `Invalid` when the pool may not have [more connections](BackendOptions::check_pool) than a
/// backend takes: 14 with these options, while the default of r2d2 is 10. `Unavailable` when the
/// pool has no free connection, or the server is a standby.
pub async fn connect<M>(pool: &Pool<M>) -> Result<Arc<dyn Backend>>
where
    M: ManageConnection<Connection = Client>,
{
    connect_with(pool, BackendOptions::default()).await
}

/// Connects a backend that takes connections of the program's pool, with options.
///
/// # Errors
/// `Invalid` for bad options; otherwise as for [`connect`].
pub async fn connect_with<M>(pool: &Pool<M>, options: BackendOptions) -> Result<Arc<dyn Backend>>
where
    M: ManageConnection<Connection = Client>,
{
    options.check_pool(usize::try_from(pool.max_size()).unwrap_or(usize::MAX))?;
    start(NAME, connector(pool), options).await
}

/// The connector of [`connect`], for what is built on the [driver](lockapi::driver) itself.
#[must_use]
pub fn connector<M>(pool: &Pool<M>) -> impl Connector + use<M>
where
    M: ManageConnection<Connection = Client>,
{
    Threaded::new(Pooled(pool.clone()))
}

/// Connects a backend that opens connections of its own with a pool's manager, and with the TLS
/// connector of that manager.
///
/// # Errors
/// `Invalid` for bad options, `Unavailable` when the server cannot be reached or is a standby.
pub async fn connect_manager<M>(manager: M, options: BackendOptions) -> Result<Arc<dyn Backend>>
where
    M: ManageConnection<Connection = Client>,
    M::Error: Send + Sync,
{
    let open = Opened(move || manager.connect());
    start(NAME, Threaded::new(open), options).await
}

/// Connects a backend to a URL, such as `postgres://user@host/database`, without TLS, or to the primary among
/// several hosts: `postgres://user@one,two:5433/database?target_session_attrs=read-write`.
///
/// # Errors
/// `Invalid` for a URL that cannot be parsed, `Unavailable` when the server cannot be reached or is
/// a standby.
pub async fn connect_url(url: &str) -> Result<Arc<dyn Backend>> {
    connect_url_with(url, BackendOptions::default()).await
}

/// Connects a backend to a URL with options, without TLS.
///
/// # Errors
/// `Invalid` for bad options; otherwise as for [`connect_url`].
pub async fn connect_url_with(url: &str, options: BackendOptions) -> Result<Arc<dyn Backend>> {
    start(NAME, connector_url(url)?, options).await
}

/// The connector of [`connect_url`], for what is built on the [driver](lockapi::driver) itself.
///
/// # Errors
/// `Invalid` for a URL that cannot be parsed.
pub fn connector_url(url: &str) -> Result<impl Connector + use<>> {
    let mut hosts = Vec::new();
    for url in each_host(url)? {
        let config = Config::from(parse_config(&url)?);
        hosts.push(Opened(move || config.connect(NoTls)));
    }
    Ok(Threaded::new(Hosts::new(hosts)?))
}
