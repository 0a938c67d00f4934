//! Coordination on PostgreSQL for programs that use diesel-async.
//!
//! [`connect_url`] returns a [`Backend`]. The primitives, their guarantees and their errors are described in
//! [`lockapi`].
//!
//! ```no_run
//! use tokio_postgres::NoTls;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let backend = lockapi_diesel_async::connect_url("postgres://localhost/app", NoTls).await?;
//! backend.migrate().await?;
//!
//! let guard = backend.mutex("reports/daily")?.lock().await?;
//! println!("holder {}", guard.fence());
//! guard.unlock().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Connections
//! An `AsyncPgConnection` is a client of tokio-postgres. A backend opens such clients itself, as
//! [`lockapi_tokio_postgres`] does, and takes no connection of a pool, so that a pool which is used up does not
//! matter. Their number, the runtime and the TLS connectors are described [there](lockapi_tokio_postgres).
//! What joins your transactions is an `AsyncPgConnection`, or one of a pool: the features `deadpool` and `bb8`
//! have those of these pools, and `&mut *conn` goes with any other.
//!
//! # In your own transaction
//! Methods whose names end in `_in` take your connection, inside `conn.transaction(async |conn| …)`, and need no
//! import. No prepared statement is left behind; as diesel-async prepares what it executes, each takes two round
//! trips:
//!
//! ```no_run
//! use std::time::Duration;
//! use diesel::{sql_query, sql_types::Text};
//! use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
//! use lockapi::limit::PermitRequest;
//! use lockapi::queue::Job;
//! use lockapi::table::{TableMode, lock_table_in};
//! use lockapi::versioned::BoxError;
//! # use lockapi_diesel_async as _;
//! # async fn example(
//! #     mut conn: AsyncPgConnection,
//! #     mutex: std::sync::Arc<dyn lockapi::Mutex>,
//! #     limiter: std::sync::Arc<dyn lockapi::RateLimiter>,
//! #     queue: std::sync::Arc<dyn lockapi::Queue>,
//! #     delivery: lockapi::queue::Delivery,
//! #     guard: Box<dyn lockapi::LeaseGuard>,
//! # ) -> Result<(), BoxError> {
//! conn.transaction::<_, BoxError, _>(async |conn| {
//!     // A lock that commit or rollback releases.
//!     if mutex.try_lock_in(conn).await? {
//!         sql_query("UPDATE account SET balance = balance + 1").execute(conn).await?;
//!     }
//!     // `Lost` if another holder is possible by now: rolls back.
//!     guard.fence().check_in(conn).await?;
//!     // The effects of a job, its completion, and the next job: all of them, or none.
//!     sql_query("UPDATE account SET welcomed = true").execute(conn).await?;
//!     delivery.ack_in(conn).await?;
//!     queue.push_in(conn, &[Job::new("send-welcome", "ada")?]).await?;
//!     if limiter.check_all_in(conn, &[PermitRequest::new("mail:123")]).await?.is_allowed() {
//!         sql_query("INSERT INTO mail (recipient) VALUES (123)").execute(conn).await?;
//!     }
//!     // Work that is done in the transaction that takes its job.
//!     for job in queue.take_in(conn, 10).await? {
//!         let insert = sql_query("INSERT INTO sent (name) VALUES ($1)");
//!         insert.bind::<Text, _>(job.name()).execute(conn).await?;
//!     }
//!     lock_table_in(conn, "orders", TableMode::Share, Duration::from_secs(5)).await?;
//!     Ok(())
//! })
//! .await
//! # }
//! ```
//!
//! # Errors
//! On connections of the backend the server's codes are known. Of a statement in your own transaction
//! diesel-async passes on few of them; for the others the kind of an error is derived from the server's message.
//! If `lc_messages` is not English, missing tables and privileges are reported there as `Unavailable`, with the
//! server's message; a lock wait that timed out, a deadlock and a full lock table are recognised in eleven other
//! languages. What the server refuses of a `VersionedUpdate`, for a reason that is not known, is `Invalid`. diesel-async
//! does not tell whether a statement was sent on a connection that has ended:
//! the error is `Indeterminate`.

mod failure;
mod transaction;
mod versioned;

use std::sync::Arc;

use lockapi::driver::Connector;
use lockapi::engine::start;
use lockapi::{Backend, BackendOptions, Result};
use tokio_postgres::Config;

pub use lockapi_tokio_postgres::Tls;
pub use transaction::{Borrowed, DieselAsync};
pub use versioned::{VersionedUpdate, Work, is_conflict, transact};

/// ```no_run
/// use std::time::Duration;
/// use diesel_async::{AsyncConnection, AsyncPgConnection, SimpleAsyncConnection};
/// use lockapi::versioned::BoxError;
/// # async fn example(mut conn: AsyncPgConnection) -> Result<(), BoxError> {
/// conn.transaction::<_, BoxError, _>(async |conn| {
///     lockapi_diesel_async::with_lock_timeout_in(conn, Duration::from_secs(1), async |conn| {
///         conn.batch_execute("ALTER TABLE orders ADD note text").await?;
///         Ok(())
///     })
///     .await
/// })
/// .await
/// # }
/// ```
#[doc(inline)]
pub use lockapi::table::with_lock_timeout_in;
/// ```no_run
/// use lockapi::admin::Priority;
/// use diesel_async::{AsyncConnection, AsyncPgConnection, SimpleAsyncConnection};
/// use lockapi::versioned::BoxError;
/// # async fn example(mut conn: AsyncPgConnection, backend: std::sync::Arc<dyn lockapi::Backend>) -> Result<(), BoxError> {
/// conn.transaction::<_, BoxError, _>(async |conn| {
///     let priority = Priority::new("add a column to orders");
///     let (_, report) = lockapi_diesel_async::with_priority_in(&*backend, conn, priority, async |conn| {
///         conn.batch_execute("ALTER TABLE orders ADD note text").await?;
///         Ok::<_, BoxError>(())
///     })
///     .await?;
///     println!("{} sessions were in the way", report.signalled.len());
///     Ok(())
/// })
/// .await
/// # }
/// ```
#[doc(inline)]
pub use lockapi::table::with_priority_in;

const NAME: &str = "diesel-async";

/// Connects a backend to a URL, such as `postgres://user@host/database`, or to the primary among several
/// hosts: `postgres://user@one,two:5433/database?target_session_attrs=read-write`.
///
/// # Cancel safety
/// When dropped, the probe ends in the background and its connections are closed.
///
/// # Errors
/// `Invalid` for a URL that cannot be parsed, `Unavailable` when the server cannot be reached or is a
/// standby.
pub async fn connect_url(url: &str, tls: impl Tls) -> Result<Arc<dyn Backend>> {
    connect_url_with(url, tls, BackendOptions::default()).await
}

/// Connects a backend to a URL with options.
///
/// # Errors
/// `Invalid` for bad options; otherwise as for [`connect_url`].
pub async fn connect_url_with(
    url: &str,
    tls: impl Tls,
    options: BackendOptions,
) -> Result<Arc<dyn Backend>> {
    start(NAME, connector_url(url, tls)?, options).await
}

/// The connector of [`connect_url`], for what is built on the [driver](lockapi::driver) itself.
///
/// # Errors
/// `Invalid` for a URL that cannot be parsed; `Unavailable` when there is no runtime, and none can be started.
pub fn connector_url<T: Tls>(url: &str, tls: T) -> Result<impl Connector + use<T>> {
    lockapi_tokio_postgres::connector_url(url, tls)
}

/// Connects a backend with a configuration and options.
///
/// # Errors
/// `Invalid` for bad options and for a configuration of several hosts; otherwise as for [`connect_url`].
pub async fn connect_config_with(
    config: Config,
    tls: impl Tls,
    options: BackendOptions,
) -> Result<Arc<dyn Backend>> {
    let connector = lockapi_tokio_postgres::connector_config(config, tls)?;
    start(NAME, connector, options).await
}
