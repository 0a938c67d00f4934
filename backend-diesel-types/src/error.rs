//! What errors of Diesel say.
//!
//! Diesel tells the SQLSTATE of a few errors only. Of the others it is read from the server's message, [where that is
//! known](sqlstate_of_message).

use diesel::result::{DatabaseErrorKind, Error};
use lockapi::driver::sqlstate_of_message;
use lockapi::{Error as Refusal, ErrorKind, Report};

/// What the server reports, without what may quote data.
#[must_use]
pub fn report(error: &Error) -> Report {
    let code = sqlstate(error).map(str::to_owned);
    match error {
        Error::DatabaseError(_, told) => Report::new(code, told.message()).about(
            told.constraint_name(),
            told.table_name(),
            told.column_name(),
        ),
        _ => Report::new(code, &error.to_string()),
    }
}

/// The server's code, as far as it is known.
#[must_use]
pub fn sqlstate(error: &Error) -> Option<&'static str> {
    let Error::DatabaseError(kind, told) = error else {
        return None;
    };
    match kind {
        DatabaseErrorKind::UnableToSendCommand | DatabaseErrorKind::ClosedConnection => None,
        DatabaseErrorKind::ReadOnlyTransaction => Some("25006"),
        DatabaseErrorKind::SerializationFailure => Some("40001"),
        DatabaseErrorKind::UniqueViolation => Some("23505"),
        DatabaseErrorKind::ForeignKeyViolation => Some("23503"),
        DatabaseErrorKind::NotNullViolation => Some("23502"),
        DatabaseErrorKind::CheckViolation => Some("23514"),
        DatabaseErrorKind::RestrictViolation => Some("23001"),
        DatabaseErrorKind::ExclusionViolation => Some("23P01"),
        _ => sqlstate_of_message(told.message()),
    }
}

/// Whether what was sent, or read, is not what a query needs: nothing else has happened.
#[must_use]
pub fn is_local(error: &Error) -> bool {
    matches!(
        error,
        Error::DeserializationError(_) | Error::QueryBuilderError(_) | Error::SerializationError(_)
    )
}

/// The error for a value that cannot be encoded, and so was not sent.
#[must_use]
pub fn not_encoded(error: &Error, operation: &'static str) -> Option<Refusal> {
    let Error::SerializationError(error) = error else {
        return None;
    };
    let message = format!("a value cannot be encoded: {error}");
    Some(Refusal::new(ErrorKind::Invalid, operation, message))
}

/// Whether work that failed with this error may be done again; see
/// [`is_conflict`](lockapi::versioned::is_conflict).
#[must_use]
pub fn is_conflict(error: &(dyn std::error::Error + 'static)) -> bool {
    lockapi::versioned::is_conflict(error, |error| {
        let error = error.downcast_ref::<Error>()?;
        sqlstate(error).map(str::to_owned)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violations_are_of_the_data() {
        for (kind, code) in [
            (DatabaseErrorKind::UniqueViolation, "23505"),
            (DatabaseErrorKind::RestrictViolation, "23001"),
            (DatabaseErrorKind::ExclusionViolation, "23P01"),
        ] {
            let error = Error::DatabaseError(kind, Box::new("violated".to_owned()));
            assert_eq!(sqlstate(&error), Some(code));
        }
    }
}
