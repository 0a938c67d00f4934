//! Errors of the library as failures.

use lockapi::{Error as Refusal, ErrorKind, Failure, Report, Severity};
use tokio_postgres::Error;
use tokio_postgres::error::Severity as PgSeverity;

/// The failure of a connection that could not be opened.
#[must_use]
pub fn not_connected(error: Error) -> Failure {
    match report(&error) {
        Some(report) => Failure::connect(report.sqlstate().map(str::to_owned), report),
        None => Failure::connect(None, error),
    }
}

/// The failure of a statement.
#[must_use]
pub fn failed(error: Error) -> Failure {
    match report(&error) {
        Some(report) => Failure::reported(report),
        // Whatever the server did not report came from the connection.
        None => Failure::statement(None, true, error),
    }
}

/// The error of a statement of the program. What cannot be encoded was not sent.
#[must_use]
pub fn refused(error: Error, operation: &'static str) -> Refusal {
    // The driver has no other way to tell it.
    if error.to_string().starts_with("error serializing parameter") {
        let message = format!("a value cannot be encoded: {error}");
        return Refusal::new(ErrorKind::Invalid, operation, message);
    }
    failed(error).error_of_program(operation)
}

/// What the server reports, without what may quote data.
fn report(error: &Error) -> Option<Report> {
    let of_driver = error.as_db_error()?;
    // A server that is older than 9.6, or a pooler, tells it in its own language only.
    let severity = match of_driver.parsed_severity() {
        Some(PgSeverity::Panic) => Severity::Panic,
        Some(PgSeverity::Fatal) => Severity::Fatal,
        Some(_) => Severity::Error,
        None => match of_driver.severity() {
            "PANIC" => Severity::Panic,
            "FATAL" => Severity::Fatal,
            _ => Severity::Error,
        },
    };
    let code = of_driver.code().code().to_owned();
    let report = Report::new(Some(code), of_driver.message())
        .severe(severity)
        .about(
            of_driver.constraint(),
            of_driver.table(),
            of_driver.column(),
        );
    Some(report)
}

/// The SQLSTATE of an error that the server has reported.
#[must_use]
pub fn sqlstate(error: &Error) -> Option<String> {
    error.code().map(|code| code.code().to_owned())
}
