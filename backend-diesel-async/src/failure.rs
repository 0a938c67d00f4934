//! What the errors of diesel-async say.
//!
//! It tells the SQLSTATE of a few errors only. Of the others it is read from the server's message, [where that
//! is known](lockapi::driver::sqlstate_of_message); otherwise the failure is known to have had no effect, and its kind is the
//! general one. Severity is not told either: whether a report that is not known has ended the session is asked of the
//! connection.

use diesel::result::{DatabaseErrorKind, Error};
use diesel_async::{AsyncPgConnection, SimpleAsyncConnection};
use lockapi::Failure;
use lockapi_diesel_types::{is_local, report, sqlstate};

/// What became of a statement on this connection.
pub(crate) async fn failed_on(connection: &mut AsyncPgConnection, error: Error) -> Failure {
    let failure = failed(error);
    let is_told = failure.sqlstate.is_some() || failure.broken || failure.sent;
    // Nothing but whether it answers.
    if is_told || connection.batch_execute("").await.is_ok() {
        return failure;
    }
    Failure {
        broken: true,
        sent: true,
        ..failure
    }
}

fn failed(error: Error) -> Failure {
    match error {
        // Whatever the server did not report: it may have been sent, in spite of the name.
        Error::DatabaseError(DatabaseErrorKind::UnableToSendCommand, told) => {
            Failure::statement(None, true, told.message())
        }
        Error::DatabaseError(..) => {
            Failure::refused(sqlstate(&error).map(str::to_owned), report(&error))
        }
        _ if is_local(&error) => Failure::corrupt(error.to_string()),
        Error::RollbackErrorOnCommit { commit_error, .. } => Failure {
            broken: true,
            ..failed(*commit_error)
        },
        _ => Failure::statement(None, true, error),
    }
}

#[cfg(test)]
mod tests {
    use lockapi::ErrorKind;

    use super::*;

    fn kind_of(kind: DatabaseErrorKind, message: &str) -> ErrorKind {
        failed(Error::DatabaseError(kind, Box::new(message.to_owned()))).kind()
    }

    #[test]
    fn messages_tell_the_code_that_diesel_does_not() {
        let unknown = |message| kind_of(DatabaseErrorKind::Unknown, message);
        let waited = "canceling statement due to lock timeout";
        assert_eq!(unknown(waited), ErrorKind::TimedOut);
        let missing = "relation \"lockapi.lease\" does not exist";
        assert_eq!(unknown(missing), ErrorKind::Unsupported);
        // Of a message in a language that is not known: nothing happened.
        let missing = "Relation »lockapi.lease« existiert nicht";
        assert_eq!(unknown(missing), ErrorKind::Unavailable);
    }

    #[test]
    fn without_an_answer_the_outcome_is_unknown() {
        let kind = kind_of(DatabaseErrorKind::UnableToSendCommand, "connection closed");
        assert_eq!(kind, ErrorKind::Indeterminate);
    }
}
