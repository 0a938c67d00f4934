//! Transactions of a program, each in the way of its library.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lockapi::queue::{Delivery, Job};
use lockapi::{Backend, BackendOptions, ErrorKind, Fence};
use tokio::time::timeout;

use crate::args::Library;
use crate::log::{Answer, Failed};

mod diesel;
mod sqlx;
mod sync;

/// How long a program waits for a transaction of its own.
const PATIENCE: Duration = Duration::from_secs(15);
const LOCK: Duration = Duration::from_secs(3);

/// What of the library is done in a transaction, before the program's own statement.
#[derive(Clone)]
pub(crate) enum Inside {
    Nothing,
    CheckIn(Fence),
    Lock(Arc<dyn lockapi::Mutex>),
    Push(Arc<dyn lockapi::Queue>, Job),
    Ack(Arc<Delivery>),
}

/// Why a transaction was not committed, as far as the program knows.
pub(crate) enum StoreError {
    /// The library refused.
    Refused(lockapi::Error),
    NotDone(String),
    Unknown(String),
}

impl StoreError {
    pub(crate) fn answer(&self) -> Answer {
        let failed = |what, kind: &str, message: &str| Answer::Failed {
            what,
            kind: kind.to_owned(),
            message: message.to_owned(),
        };
        match self {
            // Whatever it says: the transaction was never committed.
            Self::Refused(error) => failed(
                Failed::NotDone,
                &format!("{:?}", error.kind()),
                &error.to_string(),
            ),
            Self::NotDone(message) => failed(Failed::NotDone, "NotDone", message),
            Self::Unknown(message) => failed(Failed::Unknown, "Unknown", message),
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Self::Refused(error) if error.kind() == ErrorKind::Lost)
    }
}

fn not_done(error: impl std::fmt::Display) -> StoreError {
    StoreError::NotDone(error.to_string())
}

fn unknown(error: impl std::fmt::Display) -> StoreError {
    StoreError::Unknown(error.to_string())
}

impl From<lockapi::Error> for StoreError {
    fn from(error: lockapi::Error) -> Self {
        Self::Refused(error)
    }
}

/// Commits are durable, whatever the role's settings are.
const SETTLE: &str = "SET LOCAL synchronous_commit = on";

/// The transactions of a program.
#[async_trait]
pub(crate) trait Store: Send + Sync {
    /// Runs a transaction with a statement that answers a number.
    async fn transact(&self, inside: Inside, sql: String) -> Result<i64, StoreError>;
}

/// Connects a backend with a library, and opens a store beside it.
pub(crate) async fn connect(
    library: Library,
    url: &str,
    options: BackendOptions,
) -> lockapi::Result<Arc<dyn Backend>> {
    match library {
        Library::Sqlx => lockapi_sqlx::connect_url_with(url, options).await,
        Library::Diesel => lockapi_diesel::connect_url_with(url, options).await,
        Library::Sync => lockapi_postgres::connect_url_with(url, options).await,
    }
}

pub(crate) fn open(library: Library, url: &str) -> crate::Result<Arc<dyn Store>> {
    Ok(match library {
        Library::Sqlx => Arc::new(sqlx::Pool::new(url)?),
        Library::Diesel => Arc::new(diesel::Connections::new(url)),
        Library::Sync => Arc::new(sync::Connections::new(url)?),
    })
}

/// Connections that nobody uses now.
struct Idle<C: Send + 'static>(Mutex<Vec<C>>);

impl<C: Send + 'static> Drop for Idle<C> {
    /// Those that block are not closed on threads of the runtime.
    fn drop(&mut self) {
        let idle = std::mem::take(self.0.get_mut().unwrap_or_else(PoisonError::into_inner));
        std::thread::spawn(move || drop(idle));
    }
}

impl<C: Send + 'static> Idle<C> {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Vec::new())))
    }

    fn take(&self) -> Option<C> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn put(&self, connection: C) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < 3 {
            idle.push(connection);
        }
    }
}

/// Runs a transaction of a library that blocks; one that takes too long goes on without being waited for.
async fn blocking(
    work: impl FnOnce() -> Result<i64, StoreError> + Send + 'static,
) -> Result<i64, StoreError> {
    match timeout(PATIENCE, tokio::task::spawn_blocking(work)).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(failed)) => std::panic::resume_unwind(failed.into_panic()),
        Err(_) => Err(unknown("the transaction takes too long")),
    }
}

/// Runs a transaction of an async library.
async fn bounded(work: impl Future<Output = Result<i64, StoreError>>) -> Result<i64, StoreError> {
    match timeout(PATIENCE, work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(unknown("the transaction takes too long")),
    }
}
