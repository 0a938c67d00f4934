//! One error for every operation: what kind, of which operation, on which key, and why.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

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
    /// The time given for waiting ran out; nothing is held.
    TimedOut,
    /// The operation did not happen: the database could not be reached or refused to serve.
    Unavailable,
    /// The request was sent and its answer never came; it may have happened.
    Indeterminate,
    /// Waiting would never have ended, because whoever holds it waits, directly or through others,
    /// for what the caller holds. Nothing of the request is held; release what was held before, and
    /// begin again.
    Deadlock,
    /// You held it and no longer do: it expired, its session ended, or another holder followed.
    Lost,
    /// A stated limit of the process or the server is reached.
    Capacity,
    /// This backend, or the way it is connected, cannot do that.
    Unsupported,
    /// The database answered something that this version of the library does not understand.
    Corrupt,
}

/// The error of every operation.
///
/// It names the operation and the key, and keeps the driver's error as its
/// [`source`](StdError::source). It never holds a payload, a password or a connection string.
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
    /// Makes an error of `kind` for `operation`; `message` says what was wrong and what is allowed.
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

    /// The same error, naming the key that it is about.
    #[must_use]
    pub fn on(mut self, key: impl fmt::Display) -> Self {
        self.0.key = Some(key.to_string());
        self
    }

    /// The same error, naming the operation that it is about.
    #[must_use]
    pub fn during(mut self, operation: &'static str) -> Self {
        self.0.operation = operation;
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

    /// The server's five-character error code, when it was the server that refused.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&str> {
        self.0.sqlstate.as_deref()
    }

    /// Whether the same call may succeed later without anything being changed.
    ///
    /// An [`Indeterminate`](ErrorKind::Indeterminate) operation is not retryable as it is: look
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

/// What a driver reports when a statement or a connection fails.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The server's error code, when the server answered.
    pub sqlstate: Option<String>,
    /// Whether the connection can no longer be used.
    pub broken: bool,
    /// Whether the statement may have been executed although its answer is missing.
    pub sent: bool,
    /// The driver's own error.
    pub source: Arc<dyn StdError + Send + Sync>,
}

impl Failure {
    /// A failure to get a connection: nothing was sent.
    #[must_use]
    pub fn connect(
        sqlstate: Option<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self {
            sqlstate,
            broken: true,
            sent: false,
            source: Arc::from(source.into()),
        }
    }

    /// A failure of a statement: `broken` says that the connection went with it.
    #[must_use]
    pub fn statement(
        sqlstate: Option<String>,
        broken: bool,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        // An error report is the server's word that the statement had no effect; without one
        // nobody knows.
        let sent = sqlstate.is_none();
        Self {
            broken: broken || sqlstate.as_deref().is_some_and(ends_session),
            sqlstate,
            sent,
            source: Arc::from(source.into()),
        }
    }

    /// A statement that the server refused, so that it had no effect, of a driver that may not tell
    /// the code.
    #[must_use]
    pub fn refused(
        sqlstate: Option<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self {
            sent: false,
            ..Self::statement(sqlstate, false, source)
        }
    }

    /// The same failure of something that cannot have had an effect that lasts.
    #[must_use]
    pub(crate) fn without_effect(&self) -> Self {
        Self {
            sent: false,
            ..self.clone()
        }
    }

    /// An answer that does not have the declared shape.
    #[must_use]
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self {
            sqlstate: None,
            broken: false,
            sent: true,
            source: Arc::new(Error::new(ErrorKind::Corrupt, "decode", message)),
        }
    }

    /// The kind of error that this failure is to a caller.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        if let Some(error) = self.source.downcast_ref::<Error>() {
            return error.kind();
        }
        match self.sqlstate.as_deref() {
            Some(code) => classify(code),
            None if self.sent => ErrorKind::Indeterminate,
            None => ErrorKind::Unavailable,
        }
    }

    fn told(&self) -> String {
        told(&*self.source)
    }

    /// The error for one caller of the failed statement.
    #[must_use]
    pub fn error(&self, operation: &'static str) -> Error {
        let kind = self.kind();
        let message = match (kind, &self.sqlstate) {
            (ErrorKind::Unsupported, Some(code)) if is_missing_object(code) => {
                format!(
                    "the lockapi tables are missing or of another version; run migrate() ({code})"
                )
            }
            (_, Some(code)) => format!("{} ({code})", self.told()),
            (ErrorKind::Indeterminate, None) => {
                format!(
                    "the connection ended before the answer came: {}",
                    self.told()
                )
            }
            (_, None) => self.told(),
        };
        let mut error = Error::new(kind, operation, message);
        error.0.sqlstate.clone_from(&self.sqlstate);
        error.0.source = Some(Arc::clone(&self.source));
        error
    }
}

/// What an error and its sources say, each in its first line: what follows may quote data.
fn told(error: &(dyn StdError + 'static)) -> String {
    let mut told = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default();
        if !told.contains(line) {
            let colon = if told.is_empty() { "" } else { ": " };
            told = format!("{told}{colon}{line}");
        }
        next = error.source();
    }
    told
}

/// The one table of SQLSTATE classes; every backend uses it.
fn classify(code: &str) -> ErrorKind {
    match code {
        // Out of shared memory (the lock table is full), too many connections, disk full.
        "53000" | "53100" | "53200" | "53300" | "53400" => ErrorKind::Capacity,
        "55P03" => ErrorKind::TimedOut,
        "40P01" => ErrorKind::Deadlock,
        // Serialization failure, cancelled, read-only, aborted or idle transaction.
        "40001" | "57014" | "25006" | "25P02" | "25P03" => ErrorKind::Unavailable,
        // Feature not supported, missing rights.
        "0A000" | "42501" => ErrorKind::Unsupported,
        code if is_missing_object(code) => ErrorKind::Unsupported,
        // 28 authorization, 3D no such database, 57P shutdown and its kin, 08 connection.
        code if ["28", "3D", "57", "08"]
            .iter()
            .any(|class| code.starts_with(class)) =>
        {
            ErrorKind::Unavailable
        }
        _ => ErrorKind::Corrupt,
    }
}

/// Undefined schema, table, column or function.
fn is_missing_object(code: &str) -> bool {
    matches!(code, "3F000" | "42P01" | "42703" | "42883")
}

fn ends_session(code: &str) -> bool {
    code.starts_with("08") || (code.starts_with("57P") && code != "57P04") || code == "25P03"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(code: &str) -> ErrorKind {
        Failure::statement(Some(code.to_owned()), false, "refused").kind()
    }

    #[test]
    fn classes() {
        assert_eq!(kind_of("53200"), ErrorKind::Capacity);
        assert_eq!(kind_of("53300"), ErrorKind::Capacity);
        assert_eq!(kind_of("57P01"), ErrorKind::Unavailable);
        assert_eq!(kind_of("57014"), ErrorKind::Unavailable);
        assert_eq!(kind_of("08006"), ErrorKind::Unavailable);
        assert_eq!(kind_of("55P03"), ErrorKind::TimedOut);
        assert_eq!(kind_of("40P01"), ErrorKind::Deadlock);
        assert_eq!(kind_of("42P01"), ErrorKind::Unsupported);
        assert_eq!(kind_of("22P02"), ErrorKind::Corrupt);
    }

    #[test]
    fn a_shutdown_takes_the_connection_with_it() {
        assert!(Failure::statement(Some("57P01".into()), false, "bye").broken);
        assert!(!Failure::statement(Some("57014".into()), false, "cancelled").broken);
    }

    #[test]
    fn the_message_is_that_of_the_whole_chain() {
        #[derive(Debug)]
        struct Outer(std::io::Error);

        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("db error")
            }
        }

        impl StdError for Outer {
            fn source(&self) -> Option<&(dyn StdError + 'static)> {
                Some(&self.0)
            }
        }

        let cause = std::io::Error::other("ERROR: out of shared memory\nDETAIL: of somebody");
        let failure = Failure::statement(Some("53200".into()), false, Outer(cause));
        let told = failure.error("lock").to_string();
        assert_eq!(told, "lock: db error: ERROR: out of shared memory (53200)");
    }

    #[test]
    fn a_missing_answer_is_indeterminate() {
        let failure = Failure::statement(None, true, "reset by peer");
        assert_eq!(failure.kind(), ErrorKind::Indeterminate);
        assert!(!failure.error("lock").is_retryable());
    }
}
