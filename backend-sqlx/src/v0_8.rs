//! The same on sqlx 0.8, for programs that are not on 0.9 yet.
//!
//! ```toml
//! lockapi-sqlx = { version = "0.1", features = ["sqlx-0-8"] }
//! ```
//!
//! What is described [at the root](crate) holds here, with the pools, connections and transactions of that version:
//! `lockapi_sqlx::v0_8::connect(&pool)`. The examples there, and here on each function, are of the root; with this version put
//! `lockapi_sqlx::v0_8` for `lockapi_sqlx`. sqlx 0.9 is built as well, and Rust 1.94 is required for it.

#[path = "connect.rs"]
mod connect;
#[path = "connector.rs"]
mod connector;
#[path = "table.rs"]
mod table;
#[path = "transaction.rs"]
mod transaction;
#[path = "value.rs"]
mod value;
#[path = "versioned.rs"]
mod versioned;

use std::borrow::Cow;
use std::error::Error as StdError;

use ::sqlx_08 as sqlx;

/// sqlx 0.8 makes no difference between texts.
fn assembled(sql: &str) -> &str {
    sql
}

fn fixed(sql: &'static str) -> Cow<'static, str> {
    Cow::Borrowed(sql)
}

/// SeaORM 2 is on sqlx 0.9.
fn wrapped<'e>(_: &'e (dyn StdError + 'static)) -> Option<&'e (dyn StdError + 'static)> {
    None
}

pub use connect::{connect, connect_url, connect_url_with, connect_with, connector, connector_url};
pub use connector::Borrowed;
pub use table::{Work, with_lock_timeout_in, with_priority_in};
pub use transaction::Sqlx;
pub use versioned::{Begun, VersionedUpdate, is_conflict, transact};
