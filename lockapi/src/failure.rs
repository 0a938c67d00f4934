//! Failures that drivers report, and their classification.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind};

pub(crate) const ENDED: &str = "the work has ended its transaction itself, by a COMMIT or a ROLLBACK of its own; \
                                leave that to its caller, and return an error to roll back";

/// What an error of the server has terminated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Severity {
    /// The statement.
    #[default]
    Error,
    /// The session.
    Fatal,
    /// All sessions of the server.
    Panic,
}

/// A server's error report without the parts that quote data: DETAIL, HINT, CONTEXT, and what
/// follows the first line of the message.
#[derive(Clone, Debug, Default)]
pub struct Report {
    severity: Severity,
    sqlstate: Option<String>,
    message: String,
    constraint: Option<String>,
    table: Option<String>,
    column: Option<String>,
}

impl Report {
    /// A report with this message and code, if the driver provides one.
    #[must_use]
    pub fn new(sqlstate: Option<String>, message: &str) -> Self {
        Self {
            sqlstate,
            message: message.lines().next().unwrap_or_default().to_owned(),
            ..Self::default()
        }
    }

    /// The same report, of this severity.
    #[must_use]
    pub fn severe(mut self, severity: Severity) -> Self {
        self.severity = severity;
        self
    }

    /// The same report, with the objects that it concerns.
    #[must_use]
    pub fn about(
        mut self,
        constraint: Option<&str>,
        table: Option<&str>,
        column: Option<&str>,
    ) -> Self {
        self.constraint = constraint.map(str::to_owned);
        self.table = table.map(str::to_owned);
        self.column = column.map(str::to_owned);
        self
    }

    /// The severity; [`Severity::Error`] if the driver does not provide it.
    #[must_use]
    pub fn severity(&self) -> Severity {
        self.severity
    }

    /// The code.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&str> {
        self.sqlstate.as_deref()
    }

    /// The first line of the message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The constraint or index that was violated.
    #[must_use]
    pub fn constraint(&self) -> Option<&str> {
        self.constraint.as_deref()
    }

    /// The table that is concerned.
    #[must_use]
    pub fn table(&self) -> Option<&str> {
        self.table.as_deref()
    }

    /// The column that is concerned.
    #[must_use]
    pub fn column(&self) -> Option<&str> {
        self.column.as_deref()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Report {}

/// What a driver reports when a statement or a connection fails.
///
/// # What is known of the statement
/// If the server reports that a statement failed, with [`Severity::Error`], the statement had no
/// effect. A report that ends the session proves nothing about the statement: a pooler sends one when
/// it loses the server, and a server may send one after the commit. So a statement that was sent may
/// have happened and is [`ErrorKind::Indeterminate`] after:
///
/// | report | |
/// |---|---|
/// | none | the connection ended, or the answer did not come in time |
/// | FATAL or PANIC, of any code | the session ended |
/// | 08xxx | a connection ended, perhaps one behind a pooler |
/// | 40003 | the server does not know it |
/// | 57P01, 57P02, 57P03, 57P05 | shutdown, crash, no connections, idle session |
/// | 25P03, 25P04 | transaction that was idle or open for too long |
///
/// 26000 and 42P05, a prepared statement that is missing or exists already, mean that the statement had
/// no effect, and that the connection now has another session: it cannot be used any more.
///
/// While a connection is being opened these codes mean [`ErrorKind::Unavailable`]: nothing was sent
/// yet.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The server's error code, when the server answered.
    pub sqlstate: Option<String>,
    /// Whether the connection can no longer be used.
    pub broken: bool,
    /// Whether the statement may have been executed.
    pub sent: bool,
    /// The server's [`Report`], or the driver's own error where there is none.
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
            broken: true,
            sent: false,
            source: without_data(sqlstate.as_deref(), source.into()),
            sqlstate,
        }
    }

    /// A failure of a statement that the server reported.
    #[must_use]
    pub fn reported(report: Report) -> Self {
        let ended = report.severity != Severity::Error;
        let unknown = ended || report.sqlstate().is_none_or(leaves_unknown);
        Self {
            broken: unknown || report.sqlstate().is_some_and(is_of_another_session),
            sent: unknown,
            sqlstate: report.sqlstate.clone(),
            source: Arc::new(report),
        }
    }

    /// A failure of a statement; `broken` means that the connection failed as well. Without a code the
    /// server has not answered. If the driver provides the severity, use [`reported`](Self::reported).
    #[must_use]
    pub fn statement(
        sqlstate: Option<String>,
        broken: bool,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        let code = sqlstate.as_deref();
        Self {
            broken: broken
                || code.is_some_and(|code| leaves_unknown(code) || is_of_another_session(code)),
            sent: code.is_none_or(leaves_unknown),
            source: without_data(code, source.into()),
            sqlstate,
        }
    }

    /// A statement that the server refused, so that it had no effect, on a connection that stays
    /// usable, of a driver that may not provide the code.
    #[must_use]
    pub fn refused(
        sqlstate: Option<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        let sent = sqlstate.as_deref().is_some_and(leaves_unknown);
        Self {
            sent,
            ..Self::statement(sqlstate, false, source)
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

    /// The same failure of something that can be shown not to have happened.
    #[must_use]
    pub(crate) fn undone(mut self) -> Self {
        self.sent = false;
        self
    }

    /// Whether the session is another than the connection had before.
    pub(crate) fn is_of_another_session(&self) -> bool {
        let code = self.sqlstate.as_deref();
        code.is_some_and(is_of_another_session)
    }

    /// The kind of error that this failure is to a caller.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        if let Some(error) = self.source.downcast_ref::<Error>() {
            return error.kind();
        }
        match self.sqlstate.as_deref() {
            _ if self.sent => ErrorKind::Indeterminate,
            Some(code) => match classify(code) {
                // What ends a session is no answer to what was asked.
                ErrorKind::Corrupt if self.broken => ErrorKind::Unavailable,
                kind => kind,
            },
            None => ErrorKind::Unavailable,
        }
    }

    /// The message of the server or the driver.
    pub(crate) fn message(&self) -> String {
        message_chain(&*self.source)
    }

    /// The error of a [`Script::CheckTransaction`](crate::driver::Script::CheckTransaction) before a commit: nothing is
    /// written, unless the work has committed itself.
    #[must_use]
    pub(crate) fn error_before_commit(self, operation: &'static str) -> Error {
        let message = match self.sqlstate.as_deref() {
            Some("25P02") => {
                "nothing is written: a statement of the work failed, and the work did not return its error; \
                 return it, or run the statement in a savepoint"
            }
            Some("25P01" | "22P02") => ENDED,
            _ => "",
        };
        if !message.is_empty() {
            let error = Error::new(ErrorKind::Invalid, operation, message);
            return error.caused(self.sqlstate, self.source);
        }
        let unsent = Self {
            sent: false,
            ..self
        };
        unsent.error(operation)
    }

    /// The error of a statement on a table of the program, with the server's message: `Invalid` where the server
    /// refused the statement, and the driver does not tell why.
    #[doc(hidden)]
    #[must_use]
    pub fn error_of_program(&self, operation: &'static str) -> Error {
        match (self.kind(), &self.sqlstate) {
            (kind @ (ErrorKind::Unsupported | ErrorKind::Corrupt), Some(code)) => {
                // A constraint, or a value that the column does not take.
                let refused = kind == ErrorKind::Corrupt;
                let kind = if refused { ErrorKind::Invalid } else { kind };
                let message = format!("{} ({code})", self.message());
                let error = Error::new(kind, operation, message);
                error.caused(self.sqlstate.clone(), Arc::clone(&self.source))
            }
            // Refused by a server whose code the driver does not pass on. The transient ones are known by their
            // messages: this one is of the data, or of a trigger of the program.
            (ErrorKind::Unavailable, None) if !self.broken => {
                let error = Error::new(ErrorKind::Invalid, operation, self.message());
                error.caused(None, Arc::clone(&self.source))
            }
            _ => self.error(operation),
        }
    }

    /// The error for one caller of the failed statement.
    #[must_use]
    pub fn error(&self, operation: &'static str) -> Error {
        if let (Some(_), Some(error)) = (&self.sqlstate, self.source.downcast_ref::<Error>()) {
            return error.clone().during(operation);
        }
        let kind = self.kind();
        let message = match (kind, self.sqlstate.as_deref()) {
            (ErrorKind::Unsupported, Some(code)) if is_missing_object(code) => {
                format!(
                    "the tables of lockapi are missing or of another version; run `migrate()` ({code})"
                )
            }
            (ErrorKind::Unsupported, Some(code @ "42501")) if operation != "migrate" => format!(
                "{} ({code}); apply the statements of `lockapi::rights::grants` for this role",
                self.message()
            ),
            (ErrorKind::Indeterminate, Some(code)) => format!(
                "the session ended before the answer came: {} ({code})",
                self.message()
            ),
            (_, Some(code)) => format!("{} ({code})", self.message()),
            (ErrorKind::Indeterminate, None) => {
                format!(
                    "the connection ended before the answer came: {}",
                    self.message()
                )
            }
            (_, None) => self.message(),
        };
        Error::new(kind, operation, message).caused(self.sqlstate.clone(), Arc::clone(&self.source))
    }
}

/// What may be kept of a driver's error: of one with the server's code, its first lines.
fn without_data(
    sqlstate: Option<&str>,
    source: Box<dyn StdError + Send + Sync>,
) -> Arc<dyn StdError + Send + Sync> {
    let is_ours = source.is::<Report>() || source.is::<Error>();
    match sqlstate.filter(|_| !is_ours) {
        Some(code) => Arc::new(Report::new(Some(code.to_owned()), &message_chain(&*source))),
        None => Arc::from(source),
    }
}

/// The messages of an error and its sources, the first line of each: further lines may quote data.
fn message_chain(error: &(dyn StdError + 'static)) -> String {
    let mut message = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default();
        if !message.contains(line) {
            let colon = if message.is_empty() { "" } else { ": " };
            message = format!("{message}{colon}{line}");
        }
        next = error.source();
    }
    message
}

/// The kind of an error that had no effect, by its code; for every backend.
fn classify(code: &str) -> ErrorKind {
    match code {
        // Out of shared memory (the lock table is full), too many connections, disk full.
        "53000" | "53100" | "53200" | "53300" | "53400" => ErrorKind::Capacity,
        // A text with a character that the database's encoding does not have, or that is no text.
        "22021" | "22P05" => ErrorKind::Invalid,
        "55P03" => ErrorKind::TimedOut,
        "40P01" => ErrorKind::Deadlock,
        // Serialization failure, read-only, aborted transaction, a restore that is under way.
        "40001" | "25006" | "25P02" | "55000" => ErrorKind::Unavailable,
        // Feature not supported, missing rights.
        "0A000" | "42501" => ErrorKind::Unsupported,
        code if is_missing_object(code) => ErrorKind::Unsupported,
        code if is_of_another_session(code) => ErrorKind::Unavailable,
        code if leaves_unknown(code) => ErrorKind::Unavailable,
        // 28 authorization, 3D no such database, 57 cancelled, shutdown and its kin.
        code if ["28", "3D", "57"]
            .iter()
            .any(|class| code.starts_with(class)) =>
        {
            ErrorKind::Unavailable
        }
        _ => ErrorKind::Corrupt,
    }
}

/// Undefined schema, table, column or function.
pub(crate) fn is_missing_object(code: &str) -> bool {
    matches!(code, "3F000" | "42P01" | "42703" | "42883")
}

/// Whether a session has other prepared statements than those of the connection: it is shared.
fn is_of_another_session(code: &str) -> bool {
    matches!(code, "26000" | "42P05")
}

/// Whether a report of this code, of whatever severity, says nothing of the statement, and leaves a
/// connection that is of no use: perhaps that of a pooler which has lost the server.
fn leaves_unknown(code: &str) -> bool {
    code.starts_with("08")
        || matches!(
            code,
            "40003" | "57P01" | "57P02" | "57P03" | "57P05" | "25P03" | "25P04"
        )
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
        assert_eq!(kind_of("57014"), ErrorKind::Unavailable);
        assert_eq!(kind_of("55P03"), ErrorKind::TimedOut);
        assert_eq!(kind_of("40P01"), ErrorKind::Deadlock);
        assert_eq!(kind_of("42P01"), ErrorKind::Unsupported);
        assert_eq!(kind_of("22P02"), ErrorKind::Corrupt);
    }

    /// Every code of the table, at every point, of every severity.
    #[test]
    fn a_code_is_no_proof_that_nothing_happened() {
        let report =
            |code: &str, severity| Report::new(Some(code.to_owned()), "no").severe(severity);
        for code in [
            "08000", "08003", "08006", "08P01", "40003", "57P01", "57P02", "57P03", "57P05",
            "25P03", "25P04",
        ] {
            for severity in [Severity::Error, Severity::Fatal, Severity::Panic] {
                let failure = Failure::reported(report(code, severity));
                assert_eq!(failure.kind(), ErrorKind::Indeterminate, "{code}");
                assert!(failure.broken && !failure.error("push").is_retryable());
            }
            assert_eq!(kind_of(code), ErrorKind::Indeterminate, "{code}");
            let refused = Failure::refused(Some(code.to_owned()), "no");
            assert_eq!(refused.kind(), ErrorKind::Indeterminate, "{code}");
            let connecting = Failure::connect(Some(code.to_owned()), "no");
            assert_eq!(connecting.kind(), ErrorKind::Unavailable, "{code}");
        }
        for code in ["53200", "57014", "40001", "40P01", "XX000", "00000"] {
            for severity in [Severity::Fatal, Severity::Panic] {
                let failure = Failure::reported(report(code, severity));
                assert_eq!(failure.kind(), ErrorKind::Indeterminate, "{code}");
                assert!(failure.broken);
            }
            let failure = Failure::reported(report(code, Severity::Error));
            assert_ne!(failure.kind(), ErrorKind::Indeterminate, "{code}");
            assert!(!failure.broken && !failure.sent);
        }
    }

    #[test]
    fn what_a_server_refuses_of_the_program_is_invalid_without_its_code_as_well() {
        let kind = |code: Option<&str>| {
            let failure = Failure::refused(code.map(str::to_owned), "not allowed");
            failure.error_of_program("update_versioned").kind()
        };
        assert_eq!(kind(Some("P0001")), ErrorKind::Invalid);
        assert_eq!(kind(None), ErrorKind::Invalid);
        assert_eq!(kind(Some("57014")), ErrorKind::Unavailable);
        assert_eq!(kind(Some("40001")), ErrorKind::Unavailable);
        let ended = Failure::connect(None, "no connection");
        let ended = ended.error_of_program("update_versioned");
        assert_eq!(ended.kind(), ErrorKind::Unavailable);
        let lost = Failure::statement(None, true, "reset by peer");
        let lost = lost.error_of_program("update_versioned");
        assert_eq!(lost.kind(), ErrorKind::Indeterminate);
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
        let error = failure.error("lock");
        assert_eq!(
            error.to_string(),
            "lock: db error: ERROR: out of shared memory (53200)"
        );
        let kept = format!("{failure:?} {error:?} {:?}", error.source());
        assert!(!kept.contains("of somebody"), "{kept}");
    }

    #[test]
    fn a_session_with_other_statements_is_given_up() {
        for code in ["26000", "42P05"] {
            let report = Report::new(Some(code.to_owned()), "prepared statement");
            for failure in [
                Failure::reported(report),
                Failure::statement(Some(code.to_owned()), false, "prepared statement"),
            ] {
                assert_eq!(failure.kind(), ErrorKind::Unavailable, "{code}");
                assert!(failure.broken && !failure.sent, "{code}");
            }
        }
    }

    #[test]
    fn a_missing_answer_is_indeterminate() {
        let failure = Failure::statement(None, true, "reset by peer");
        assert_eq!(failure.kind(), ErrorKind::Indeterminate);
        assert!(!failure.error("lock").is_retryable());
    }
}
