//! The error type of every operation: kind, operation, key and reason.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use crate::failure::Failure;

/// The result of an operation of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, as far as a caller can act on it.
///
/// Contention is not an error: a lock that is held, an empty queue and a refused permit are
/// ordinary return values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request was refused before anything was sent: a key, an option or a duration is
    /// outside its limits.
    Invalid,
    /// The time limit for waiting has expired; nothing is held.
    TimedOut,
    /// The operation did not happen: the database could not be reached or refused to serve.
    Unavailable,
    /// The request was sent and its answer never arrived, or the connection ended instead; it may
    /// have happened. Or a lease was released so late that nobody knows whether it was held until then.
    Indeterminate,
    /// The wait would never have ended, because the holder waits, directly or through others, for a
    /// lock that the caller holds. Nothing of the request is held; release the locks that were held
    /// before, and begin again.
    Deadlock,
    /// No longer held: the lease expired, its session ended, or another holder followed.
    Lost,
    /// A stated limit of the process or the server is reached.
    Capacity,
    /// Not supported by this backend, or by the way it is connected.
    Unsupported,
    /// The database returned something that this version of the library does not understand.
    Corrupt,
}

/// The state of a row that an open transaction has locked.
pub(crate) const LOCKED: &str = "locked by an open transaction; try again when that has ended";

/// The error of every operation.
///
/// It names the operation and the key. Its [`source`](StdError::source) is the server's
/// [`Report`](crate::Report), without the parts that quote data, or the driver's error where the
/// server reported none. It never holds a payload, a password or a connection string.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    operation: &'static str,
    key: Option<String>,
    message: String,
    sqlstate: Option<String>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// Makes an error of `kind` for `operation`; `message` describes what was wrong and what is
    /// allowed.
    #[must_use]
    pub fn new(kind: ErrorKind, operation: &'static str, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            operation,
            key: None,
            message: message.into(),
            sqlstate: None,
            source: None,
        }))
    }

    /// A wait that ended without a grant.
    pub(crate) fn not_granted(operation: &'static str, timeout: Duration) -> Self {
        let message = if timeout.is_zero() {
            "held by another".to_owned()
        } else {
            format!("not granted within {timeout:?}")
        };
        Self::new(ErrorKind::TimedOut, operation, message)
    }

    /// The same error, with the server's code and with its source.
    pub(crate) fn caused(
        mut self,
        sqlstate: Option<String>,
        source: Arc<dyn StdError + Send + Sync>,
    ) -> Self {
        self.0.sqlstate = sqlstate;
        self.0.source = Some(source);
        self
    }

    /// The same error, with the key of the operation.
    #[must_use]
    pub fn on(mut self, key: impl fmt::Display) -> Self {
        self.0.key = Some(key.to_string());
        self
    }

    /// The same error, with another operation.
    #[must_use]
    pub fn during(mut self, operation: &'static str) -> Self {
        self.0.operation = operation;
        self
    }

    /// The same error, with something more that the caller has to know.
    #[must_use]
    pub(crate) fn noting(mut self, note: impl fmt::Display) -> Self {
        self.0.message = format!("{}; {note}", self.0.message);
        self
    }

    /// What kind of error it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The operation that failed, such as `lock` or `renew`.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// The key that the operation was about, as tables store it.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.0.key.as_deref()
    }

    /// The server's five-character error code, when the server refused the request.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&str> {
        self.0.sqlstate.as_deref()
    }

    /// Whether the server cannot be asked, so that any other caller would hear the same.
    pub(crate) fn is_outage(&self) -> bool {
        match self.kind() {
            ErrorKind::Unavailable => true,
            ErrorKind::Capacity => self.sqlstate().is_some(),
            _ => false,
        }
    }

    /// Whether too many callers of this process wait.
    pub(crate) fn is_backlog(&self) -> bool {
        self.kind() == ErrorKind::Capacity && self.sqlstate().is_none()
    }

    /// Whether the same call may succeed later without anything being changed.
    ///
    /// An [`Indeterminate`](ErrorKind::Indeterminate) operation is not retryable as it is: check
    /// first whether it happened.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.0.kind,
            ErrorKind::TimedOut | ErrorKind::Unavailable | ErrorKind::Capacity
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.operation)?;
        if let Some(key) = &self.0.key {
            write!(f, " {key:?}")?;
        }
        write!(f, ": {}", self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shape = f.debug_struct("Error");
        shape
            .field("kind", &self.0.kind)
            .field("operation", &self.0.operation)
            .field("key", &self.0.key)
            .field("message", &self.0.message);
        if let Some(code) = &self.0.sqlstate {
            shape.field("sqlstate", code);
        }
        shape.finish_non_exhaustive()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0
            .source
            .as_deref()
            .map(|source| source as &(dyn StdError + 'static))
    }
}
