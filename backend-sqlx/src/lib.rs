//! Coordination on PostgreSQL for programs that use sqlx.
//!
//! [`connect`] takes the program's pool and returns a [`Backend`]. The primitives, their guarantees
//! and their errors are described in [`lockapi`].
//!
//! ```no_run
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = sqlx::PgPool::connect("postgres://localhost/app").await?;
//! let backend = lockapi_sqlx::connect(&pool).await?;
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
//! The backend takes no connection of the pool. It opens its own with the pool's options,
//! `after_connect` included: two at the start, closed again after the probe; then one for leases
//! and other tables, one for jobs, two for rate limits, one that holds the mutexes, at most
//! [`BackendOptions::waiters`] that wait for mutexes, and one that receives notifications while
//! there are subscribers. Each is opened when it is first needed, after a probe on a connection
//! that is closed again has shown that the server answers.
//!
//! # Runtime
//! The work is done by tasks on the tokio runtime that [`connect`] is called on, or on a runtime
//! with one thread of the backend's own when there is none. A thread watches the deadlines.
//!
//! # In your own transaction
//! [`InTransaction`], [`CheckIn`], [`PushIn`], [`AckIn`] and [`LimitIn`] work on the connection of the caller's transaction.

mod connector;
mod queue;
mod table;
mod transaction;
mod value;
mod versioned;

use std::str::FromStr;
use std::sync::Arc;

use lockapi::BackendOptions;
use lockapi::driver::Connector;
use lockapi::{Backend, Error, ErrorKind, Result};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

pub use connector::Borrowed;
pub use queue::{AckIn, PushIn, TakeIn};
pub use table::{Work, lock_table_in, try_lock_table_in, with_lock_timeout_in, with_priority_in};
pub use transaction::{CheckIn, InTransaction, LimitIn};
pub use versioned::{Begun, VersionedUpdate, is_conflict, transact};

use connector::Sqlx;

const NAME: &str = "sqlx";

/// Connects a backend with the options of the program's pool.
///
/// # Cancel safety
/// When dropped, the probe ends in the background and its connections are closed.
///
/// # Errors
/// `Unavailable` when the server cannot be reached or is a standby.
pub async fn connect(pool: &PgPool) -> Result<Arc<dyn Backend>> {
    connect_with(pool, BackendOptions::default()).await
}

/// Connects a backend with the options of the program's pool and with options of its own.
///
/// # Errors
/// `Invalid` for bad options; otherwise as for [`connect`].
pub async fn connect_with(pool: &PgPool, options: BackendOptions) -> Result<Arc<dyn Backend>> {
    lockapi::engine::start(NAME, connector(pool)?, options).await
}

/// The connector of [`connect`], for what is built on the [driver](lockapi::driver) itself.
///
/// # Errors
/// `Unavailable` when there is no runtime, and none can be started.
pub fn connector(pool: &PgPool) -> Result<impl Connector + use<>> {
    let connect = pool.connect_options().as_ref().clone();
    Sqlx::new(pool.options().clone(), connect)
}

/// Connects a backend to a URL, such as `postgres://user@host/database`.
///
/// # Errors
/// `Invalid` for a URL that cannot be parsed; otherwise as for [`connect`].
pub async fn connect_url(url: &str) -> Result<Arc<dyn Backend>> {
    connect_url_with(url, BackendOptions::default()).await
}

/// Connects a backend to a URL with options.
///
/// # Errors
/// `Invalid` for bad options or a URL that cannot be parsed; otherwise as for [`connect`].
pub async fn connect_url_with(url: &str, options: BackendOptions) -> Result<Arc<dyn Backend>> {
    lockapi::engine::start(NAME, connector_url(url)?, options).await
}

/// The connector of [`connect_url`], for what is built on the [driver](lockapi::driver) itself.
///
/// # Errors
/// `Invalid` for a URL that cannot be parsed; otherwise as for [`connector`].
pub fn connector_url(url: &str) -> Result<impl Connector + use<>> {
    // The parser's error may quote the URL, which may hold a password.
    let connect = PgConnectOptions::from_str(url).map_err(|_| {
        let message = "the URL is not understood; allowed is postgres://user:password@host:port/database?options";
        Error::new(ErrorKind::Invalid, "connect", message)
    })?;
    Sqlx::new(PgPoolOptions::new(), connect)
}
