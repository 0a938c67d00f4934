//! Coordination on PostgreSQL for programs that use sqlx.
//!
//! [`connect`] takes the program's pool and returns a [`Backend`](lockapi::Backend). The primitives, their guarantees
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
//! `after_connect` included: two at the start, closed again after the probe; then one for leases and
//! other tables, one for renewals, one for jobs, two for rate limits, one that holds the mutexes, at
//! most [`BackendOptions::waiters`](lockapi::BackendOptions::waiters) that wait for mutexes, one that
//! receives notifications while there are subscribers, and from time to time one that deletes old rows. Each is opened when it is first
//! needed, after a probe on a connection that is closed again has shown that the server answers.
//!
//! # Runtime
//! The work is done by tasks on the tokio runtime that [`connect`] is called on, or on a runtime
//! with one thread of the backend's own when there is none. A thread watches the deadlines.
//!
//! # In your own transaction
//! Methods whose names end in `_in` take the connection of your transaction, `&mut *tx`, and need no
//! import. Their statements are unnamed, so that they also work behind a transaction-pooling proxy:
//!
//! ```no_run
//! use std::time::Duration;
//! use lockapi::limit::PermitRequest;
//! use lockapi::queue::Job;
//! use lockapi::table::{TableMode, lock_table_in};
//! # async fn example(
//! #     pool: sqlx::PgPool,
//! #     mutex: std::sync::Arc<dyn lockapi::Mutex>,
//! #     limiter: std::sync::Arc<dyn lockapi::RateLimiter>,
//! #     queue: std::sync::Arc<dyn lockapi::Queue>,
//! #     delivery: lockapi::queue::Delivery,
//! #     guard: Box<dyn lockapi::LeaseGuard>,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let mut tx = pool.begin().await?;
//! // A lock that commit or rollback releases.
//! if mutex.try_lock_in(&mut *tx).await? {
//!     sqlx::query("UPDATE account SET balance = balance + 1").execute(&mut *tx).await?;
//! }
//! // `Lost` if another holder is possible by now: roll back.
//! guard.fence().check_in(&mut *tx).await?;
//! // The effects of a job, its completion, and the next job: all of them, or none.
//! sqlx::query("UPDATE account SET welcomed = true").execute(&mut *tx).await?;
//! delivery.ack_in(&mut *tx).await?;
//! queue.push_in(&mut *tx, &[Job::new("send-welcome", "ada")?]).await?;
//! if limiter.check_all_in(&mut *tx, &[PermitRequest::new("mail:123")]).await?.is_allowed() {
//!     sqlx::query("INSERT INTO mail (recipient) VALUES (123)").execute(&mut *tx).await?;
//! }
//! // Work that is done in the transaction that takes its job.
//! for job in queue.take_in(&mut *tx, 10).await? {
//!     sqlx::query("INSERT INTO sent (name) VALUES ($1)").bind(job.name()).execute(&mut *tx).await?;
//! }
//! lock_table_in(&mut *tx, "orders", TableMode::Share, Duration::from_secs(5)).await?;
//! tx.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # sqlx 0.8
//! With the feature `sqlx-0-8` the module `v0_8` has the same for that version.
//!
//! # SeaORM
//! With the feature `sea-orm` these methods take a `sea_orm::DatabaseTransaction` of SeaORM 2 as well, and what its
//! closures are given, a reference to one. [`connect`] takes the pool that SeaORM has:
//!
#![cfg_attr(feature = "sea-orm", doc = "```no_run")]
#![cfg_attr(not(feature = "sea-orm"), doc = "```ignore")]
//! use lockapi::queue::Job;
//! use sea_orm::{ConnectionTrait, Database, TransactionTrait};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let db = Database::connect("postgres://localhost/app").await?;
//! let backend = lockapi_sqlx::connect(db.get_postgres_connection_pool()).await?;
//! let queue = backend.queue("mails")?;
//! let mut tx = db.begin().await?;
//! tx.execute_unprepared("UPDATE account SET welcomed = true").await?;
//! queue.push_in(&mut tx, &[Job::new("send-welcome", "ada")?]).await?;
//! tx.commit().await?;
//!
//! db.transaction::<_, (), lockapi::Error>(|mut tx| {
//!     Box::pin(async move {
//!         queue.push_in(&mut tx, &[Job::new("send-welcome", "grace")?]).await?;
//!         Ok(())
//!     })
//! })
//! .await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`transact`], [`VersionedUpdate`], [`with_lock_timeout_in`] and [`with_priority_in`] take what sqlx has. With SeaORM
//! [`Retry::run`](lockapi::versioned::Retry::run) repeats a closure, with [`is_conflict`], which knows the errors of SeaORM;
//! an update that found another version returns a [`Conflict`](lockapi::versioned::Conflict); and of
//! [`lockapi::table`] the functions of the same names,
//! [`with_lock_timeout_in`](lockapi::table::with_lock_timeout_in) and [`with_priority_in`](lockapi::table::with_priority_in),
//! take its transactions:
//!
#![cfg_attr(feature = "sea-orm", doc = "```no_run")]
#![cfg_attr(not(feature = "sea-orm"), doc = "```ignore")]
//! use std::time::Duration;
//! use lockapi::table::with_lock_timeout_in;
//! use lockapi::versioned::{BoxError, Conflict, Retry, check_before_commit};
//! use sea_orm::{ConnectionTrait, DatabaseConnection, DbBackend, Statement, TransactionTrait};
//!
//! async fn increment(db: &DatabaseConnection, retry: &Retry) -> Result<i64, BoxError> {
//!     let sql = |sql: &str, values: &[i64]| {
//!         let values = values.iter().map(|value| (*value).into());
//!         Statement::from_sql_and_values(DbBackend::Postgres, sql, values)
//!     };
//!     retry.run(&["counter/7"], lockapi_sqlx::is_conflict, async |attempt| {
//!         let mut tx = db.begin().await?;
//!         let value = with_lock_timeout_in(&mut tx, Duration::from_secs(1), async |tx| {
//!             let locks = if attempt.locks() { "FOR NO KEY UPDATE" } else { "" };
//!             let read = format!("SELECT value, version FROM counter WHERE id = $1 {locks}");
//!             let row = tx.query_one_raw(sql(&read, &[7])).await?.ok_or("no such counter")?;
//!             let (value, seen): (i64, i64) = (row.try_get("", "value")?, row.try_get("", "version")?);
//!             let write = "UPDATE counter SET value = $3, version = version + 1 WHERE id = $1 AND version = $2";
//!             let written = tx.execute_raw(sql(write, &[7, seen, value + 1])).await?;
//!             if written.rows_affected() == 0 {
//!                 return Err(Conflict { current: Some(seen) }.into());
//!             }
//!             Ok::<_, BoxError>(value + 1)
//!         })
//!         .await?;
//!         // SeaORM would report a commit as done although a statement has failed.
//!         check_before_commit(&mut tx).await?;
//!         tx.commit().await?;
//!         Ok(value)
//!     })
//!     .await
//! }
//! ```
//!
//! A future of `begin` that is dropped while BEGIN is under way leaves the connection of the pool in that transaction, as
//! with sqlx 0.9.0: let it come to its end.
//!
//! SeaORM does not give out its connection. What it runs stays prepared there, as its own statements do, so `_in`
//! methods that take its transactions do not go behind a transaction-pooling proxy that forgets prepared statements, nor
//! on connections on which the program runs `DISCARD ALL` or `DEALLOCATE ALL`.

mod connect;
mod connector;
#[cfg(feature = "sea-orm")]
mod sea_orm;
mod table;
mod transaction;
#[cfg(feature = "sqlx-0-8")]
#[expect(clippy::duplicate_mod, reason = "each file is for both versions")]
pub mod v0_8;
mod value;
mod versioned;

// Where the modules find it: those of `v0_8` are the same files.
use ::sqlx;

/// Text of `VersionedUpdate`, whose names are quoted.
fn assembled(sql: &str) -> sqlx::AssertSqlSafe<&str> {
    sqlx::AssertSqlSafe(sql)
}

fn fixed(sql: &'static str) -> sqlx::SqlStr {
    sqlx::SqlSafeStr::into_sql_str(sql)
}

#[cfg(feature = "sea-orm")]
use sea_orm::wrapped;

/// No other library wraps the errors of sqlx.
#[cfg(not(feature = "sea-orm"))]
fn wrapped<'e>(
    _: &'e (dyn std::error::Error + 'static),
) -> Option<&'e (dyn std::error::Error + 'static)> {
    None
}

pub use connect::{connect, connect_url, connect_url_with, connect_with, connector, connector_url};
pub use connector::Borrowed;
#[cfg(feature = "sea-orm")]
pub use sea_orm::BorrowedOrm;
pub use table::{Work, with_lock_timeout_in, with_priority_in};
pub use transaction::Sqlx;
pub use versioned::{Begun, VersionedUpdate, is_conflict, transact};
