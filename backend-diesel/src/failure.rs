//! What Diesel's errors say.
//!
//! Diesel tells the SQLSTATE of a few errors only. Of the others it is read from the server's
//! message, [where that is known](sqlstate_of_message); otherwise the failure is known to have had no effect, and
//! its kind is the general one. Severity is not told either, but libpq tells when the session has
//! ended, and then nothing is known of the statement, whatever the server reported.

use std::error::Error as StdError;

use diesel::result::{DatabaseErrorKind, Error};
use lockapi::Failure;
use lockapi::driver::sqlstate_of_message;
use lockapi_diesel_types::{is_local, report, sqlstate};

pub(crate) fn failed(error: Error) -> Failure {
    let kind = match &error {
        Error::DatabaseError(kind, _) => kind,
        _ if is_local(&error) => return Failure::corrupt(error.to_string()),
        _ => return Failure::statement(None, true, error),
    };
    match kind {
        DatabaseErrorKind::UnableToSendCommand => Failure::connect(None, report(&error)),
        // Whatever the server said last: the session has ended, which a FATAL does in any language.
        DatabaseErrorKind::ClosedConnection => Failure::statement(None, true, report(&error)),
        _ => Failure::refused(sqlstate(&error).map(str::to_owned), report(&error)),
    }
}

/// The failure to connect, told without what may hold a password.
pub(crate) fn not_connected(error: &dyn StdError) -> Failure {
    let message = error.to_string();
    Failure::connect(
        sqlstate_of_message(&message).map(str::to_owned),
        shown(&message),
    )
}

/// libpq quotes what it does not understand of a connection string, and takes what follows an
/// unescaped `@` in a password for the host. It goes on to the server only with a host that it
/// found.
fn shown(message: &str) -> &str {
    // The second is how libpq 13 and older say the first.
    let found = [
        "connection to server",
        "could not connect to server",
        "FATAL:",
    ];
    match found.iter().find_map(|start| message.find(start)) {
        Some(start) => &message[start..],
        None if message.contains("could not translate host name") => "the host is not known",
        None if message.contains("connection pool") || message.contains("timed out waiting") => {
            "the pool had no free connection within its timeout"
        }
        None => {
            "libpq could not connect; its message is left out, because it may quote the connection string"
        }
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
        assert_eq!(unknown("out of shared memory"), ErrorKind::Capacity);
        let missing = "relation \"lockapi.lease\" does not exist";
        assert_eq!(unknown(missing), ErrorKind::Unsupported);
        let denied = "permission denied for schema lockapi";
        assert_eq!(unknown(denied), ErrorKind::Unsupported);
        let cancelled = "canceling statement due to user request";
        assert_eq!(unknown(cancelled), ErrorKind::Unavailable);
    }

    #[test]
    fn passwords_are_not_passed_on() {
        for message in [
            "invalid percent-encoded token: \"s3cr%zzet\"",
            "end of string reached in URI: \"postgres://u:s3cret@[::1]x/db\"",
            "timed out waiting for connection: invalid integer value \"s3cret\" for \"port\"",
            "could not translate host name \"cret@localhost\" to address",
        ] {
            let failure = not_connected(&std::io::Error::other(message));
            let told = format!("{failure:?} {}", failure.error("connect"));
            assert!(!told.contains("cr"), "{told}");
        }
        let message = "could not connect to server: Connection refused";
        let told = not_connected(&std::io::Error::other(message)).error("connect");
        assert!(told.to_string().contains(message), "{told}");
        let message = "timed out waiting for connection: connection to server at \"::1\", port 5432 failed: FATAL:  sorry, too many clients already";
        let failure = not_connected(&std::io::Error::other(message));
        assert_eq!(failure.kind(), ErrorKind::Capacity);
        assert!(
            failure
                .error("connect")
                .to_string()
                .contains("too many clients")
        );
    }

    #[test]
    fn what_is_acted_upon_is_known_in_other_languages() {
        let unknown = |message| kind_of(DatabaseErrorKind::Unknown, message);
        let waited = "storniere Anfrage wegen Zeitüberschreitung einer Sperre";
        assert_eq!(unknown(waited), ErrorKind::TimedOut);
        assert_eq!(
            unknown("検出 デッドロックを検出しました"),
            ErrorKind::Deadlock
        );
        assert_eq!(unknown("mémoire partagée épuisée"), ErrorKind::Capacity);
    }

    #[test]
    fn a_message_in_another_language_says_that_nothing_happened() {
        let message = "Relation »lockapi.lease« existiert nicht";
        let kind = kind_of(DatabaseErrorKind::Unknown, message);
        assert_eq!(kind, ErrorKind::Unavailable);
    }

    #[test]
    fn a_connection_that_ended_leaves_the_outcome_unknown() {
        let kind = kind_of(DatabaseErrorKind::ClosedConnection, "server closed");
        assert_eq!(kind, ErrorKind::Indeterminate);
        let kind = kind_of(DatabaseErrorKind::UnableToSendCommand, "no connection");
        assert_eq!(kind, ErrorKind::Unavailable);
    }
}
