//! Coordination on PostgreSQL for programs that use Diesel.
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
//! let backend = Backend::connect(lockapi_diesel::connect_url("postgres://localhost/app"))?;
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
//! From a pool the backend takes at most 9 + [`BackendOptions::waiters`] connections: one for
//! leases and other tables, one for renewals, one for jobs, two for rate limits, one that holds the
//! mutexes, some that wait for mutexes, one that receives notifications while there are
//! subscribers, and from time to time one that deletes old rows. Each is taken when it is first
//! needed, and most are kept; two are taken for a moment when it connects, and one when a statement
//! is cancelled. A connection that is returned to the pool has its settings as they were, holds no
//! lock and listens to nothing of this library. If all connections of the pool are in use, the
//! backend cannot replace one that broke: with [`connect_manager`] or [`connect_url`] the backend
//! opens connections of its own, and the program's pool does not matter.
//!
//! # Threads
//! Each connection is used on a thread of the backend, so async programs can use the backend as
//! well: no call blocks a thread of theirs. One further thread watches the deadlines. Diesel cannot
//! wait for notifications: the thread that receives them polls ten times a second.
//!
//! # In your own transaction
//! Methods whose names end in `_in` take your connection, inside `conn.transaction(|conn| …)`, block, and
//! need no import:
//!
//! ```no_run
//! use std::time::Duration;
//! use diesel::prelude::*;
//! use diesel::{sql_query, sql_types::Text};
//! use lockapi::limit::PermitRequest;
//! use lockapi::queue::Job;
//! use lockapi::table::{TableMode, lock_table_in};
//! # fn example(
//! #     mut conn: PgConnection,
//! #     mutex: lockapi::blocking::Mutex,
//! #     limiter: lockapi::blocking::RateLimiter,
//! #     queue: lockapi::blocking::Queue,
//! #     delivery: lockapi::blocking::Delivery,
//! #     guard: lockapi::blocking::LeaseGuard,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! conn.transaction(|conn| {
//!     // A lock that commit or rollback releases.
//!     if mutex.try_lock_in(conn)? {
//!         sql_query("UPDATE account SET balance = balance + 1").execute(conn)?;
//!     }
//!     // `Lost` if another holder is possible by now: rolls back.
//!     guard.fence().check_in(conn)?;
//!     // The effects of a job, its completion, and the next job: all of them, or none.
//!     sql_query("UPDATE account SET welcomed = true").execute(conn)?;
//!     delivery.ack_in(conn)?;
//!     queue.push_in(conn, &[Job::new("send-welcome", "ada")?])?;
//!     if limiter.check_all_in(conn, &[PermitRequest::new("mail:123")])?.is_allowed() {
//!         sql_query("INSERT INTO mail (recipient) VALUES (123)").execute(conn)?;
//!     }
//!     // Work that is done in the transaction that takes its job.
//!     for job in queue.take_in(conn, 10)? {
//!         sql_query("INSERT INTO sent (name) VALUES ($1)").bind::<Text, _>(job.name()).execute(conn)?;
//!     }
//!     lock_table_in(conn, "orders", TableMode::Share, Duration::from_secs(5))?;
//!     Ok::<_, Box<dyn std::error::Error>>(())
//! })
//! # }
//! ```
//!
//! # Errors
//! Diesel does not expose most of the server's error codes. The kind of an error is derived from the
//! server's message. If `lc_messages` is not English, missing tables and privileges are reported as
//! `Unavailable`, with the server's message; a lock wait that timed out, a deadlock and a full lock
//! table are recognised in eleven other languages; in all others they are `Unavailable` as well. What the server refuses of a
//! `VersionedUpdate`, for a reason that is not known, is `Invalid`.
//!
//! # libpq
//! Diesel needs libpq: the system's (`libpq-dev` on Debian), or with the feature `bundled` one that
//! is built with the program, which takes a C compiler and the headers of OpenSSL (`libssl-dev`).
//!
//! A libpq with Kerberos, such as that of Debian, looks for its credentials each time it connects over TCP. A program that
//! ends while a thread connects may be aborted by the library of Kerberos (`krb5int_getspecific: Assertion failed`), after
//! all else is done. Call [`Backend::close`] before the program ends, or connect with `gssencmode=disable` (or the
//! environment variable `PGGSSENCMODE`) if you do not use Kerberos.

mod connector;
mod failure;
mod table;
mod transaction;
mod versioned;

use std::sync::Arc;

use diesel::r2d2::{ManageConnection, Pool};
use diesel::{Connection, PgConnection};
use lockapi::BackendOptions;
use lockapi::driver::{Connector, Hosts, Threaded, each_host};
use lockapi::engine::start;
use lockapi::{Backend, Result};

pub use connector::Borrowed;
pub use table::{with_lock_timeout_in, with_priority_in};
pub use transaction::Diesel;
pub use versioned::{VersionedUpdate, is_conflict, transact};

use connector::{Opened, Pooled};

const NAME: &str = "diesel";

/// Connects a backend that takes connections of the program's pool.
///
/// # Cancel safety
/// When dropped, the probe ends in the background and its connections are returned.
///
/// # Errors
/// `Invalid` when the pool may not have [more connections](BackendOptions::check_pool) than a backend takes: 14
/// with these options, while the default of r2d2 is 10. `Unavailable` when the pool has no connection to
/// give, or the server is a standby.
pub async fn connect<M>(pool: &Pool<M>) -> Result<Arc<dyn Backend>>
where
    M: ManageConnection<Connection = PgConnection>,
{
    connect_with(pool, BackendOptions::default()).await
}

/// Connects a backend that takes connections of the program's pool, with options.
///
/// # Errors
/// `Invalid` for bad options; otherwise as for [`connect`].
pub async fn connect_with<M>(pool: &Pool<M>, options: BackendOptions) -> Result<Arc<dyn Backend>>
where
    M: ManageConnection<Connection = PgConnection>,
{
    options.check_pool(usize::try_from(pool.max_size()).unwrap_or(usize::MAX))?;
    start(NAME, connector(pool), options).await
}

/// The connector of [`connect`], for what is built on the [driver](lockapi::driver) itself.
#[must_use]
pub fn connector<M>(pool: &Pool<M>) -> impl Connector + use<M>
where
    M: ManageConnection<Connection = PgConnection>,
{
    Threaded::new(Pooled(pool.clone()))
}

/// Connects a backend that opens connections of its own with a pool's manager.
///
/// # Errors
/// `Invalid` for bad options, `Unavailable` when the server cannot be reached or is a standby.
pub async fn connect_manager<M>(manager: M, options: BackendOptions) -> Result<Arc<dyn Backend>>
where
    M: ManageConnection<Connection = PgConnection>,
{
    let open = Opened(move || manager.connect());
    start(NAME, Threaded::new(open), options).await
}

/// Connects a backend to a URL, such as `postgres://user@host/database`, or to the primary among several
/// hosts: `postgres://user@one,two:5433/database?target_session_attrs=read-write`. libpq's parameters,
/// such as `sslmode`, may follow.
///
/// # Errors
/// `Invalid` for what is not a URL, `Unavailable` when the server cannot be reached or is a standby.
pub async fn connect_url(url: &str) -> Result<Arc<dyn Backend>> {
    connect_url_with(url, BackendOptions::default()).await
}

/// Connects a backend to a URL with options.
///
/// # Errors
/// `Invalid` for bad options; otherwise as for [`connect_url`].
pub async fn connect_url_with(url: &str, options: BackendOptions) -> Result<Arc<dyn Backend>> {
    start(NAME, connector_url(url)?, options).await
}

/// The connector of [`connect_url`], for what is built on the [driver](lockapi::driver) itself.
///
/// # Errors
/// `Invalid` for what is not a URL.
pub fn connector_url(url: &str) -> Result<impl Connector + use<>> {
    let hosts = each_host(url)?.into_iter().map(|url| {
        let url = with_limits(&url);
        Opened(move || PgConnection::establish(&url))
    });
    Ok(Threaded::new(Hosts::new(hosts.collect())?))
}

/// A network that lost the server is noticed in seconds, unless the URL says something of its own.
fn with_limits(url: &str) -> String {
    const LIMITS: &[(&str, &str)] = &[
        ("connect_timeout", "5"),
        ("keepalives_idle", "5"),
        ("keepalives_interval", "2"),
        ("keepalives_count", "3"),
        ("tcp_user_timeout", "11000"),
    ];
    let mut url = url.to_owned();
    for (name, value) in LIMITS {
        if !url.contains(name) {
            let separator = match url.find('?') {
                None => "?",
                Some(at) if at + 1 == url.len() => "",
                Some(_) => "&",
            };
            url = format!("{url}{separator}{name}={value}");
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use super::with_limits;

    #[test]
    fn limits_are_added_unless_the_url_has_them() {
        let url = with_limits("postgres://host/app");
        assert!(url.starts_with("postgres://host/app?connect_timeout=5&keepalives_idle=5&"));
        let url = with_limits("postgres://host/app?");
        assert!(url.starts_with("postgres://host/app?connect_timeout=5&"));
        let url = with_limits("postgres://host/app?sslmode=require&connect_timeout=9");
        assert!(
            url.starts_with("postgres://host/app?sslmode=require&connect_timeout=9&keepalives")
        );
        assert_eq!(url.matches("connect_timeout").count(), 1);
    }
}
